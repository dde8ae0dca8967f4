package fault

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

// Fails when a layer that adds words to an error takes its code or its cause
// away, or when an error without a code reads as one of the contract's.
func TestTheCodeOutlivesWrapping(t *testing.T) {
	inner := Wrap(io.ErrUnexpectedEOF, HerdrDown, "herdr closed the line of %s", "wA:p1")
	joined := errors.Join(errors.New("first"), fmt.Errorf("while typing: %w", inner))
	plain := errors.New("plain")
	for _, c := range []struct {
		err  error
		code Code
	}{{nil, ""}, {plain, Internal}, {inner, HerdrDown}, {joined, HerdrDown}, {Wrap(inner, Abandoned, "it ended"), Abandoned}} {
		if got := CodeOf(c.err); got != c.code {
			t.Errorf("the code of %v is %q, want %q", c.err, got, c.code)
		}
		if c.err != nil && (!Is(c.err, c.code) || Is(c.err, Conflict)) {
			t.Errorf("Is takes %v for something else", c.err)
		}
	}
	if Is(nil, "") || Is(nil, Internal) {
		t.Error("no error carries a code")
	}
	if !errors.Is(joined, io.ErrUnexpectedEOF) {
		t.Error("the cause is lost")
	}
	if From(nil) != nil || From(joined) != inner {
		t.Error("From makes another error of one that has a code")
	}
	if e := From(plain); e.Code != Internal || !errors.Is(e, plain) {
		t.Errorf("From(%v) = %v", plain, e)
	}
}

// Fails when an error leaves out its code, its sentence or its cause.
func TestAnErrorSaysAllItHas(t *testing.T) {
	for want, err := range map[string]error{
		"LOOP: it goes round":         New(Loop, "it goes %s", "round"),
		"LOOP: it goes round (EOF)":   Wrap(io.EOF, Loop, "it goes round"),
		"LOOP: a (BROKER_DOWN: b %s)": Wrap(New(BrokerDown, "b %%s"), Loop, "a"),
	} {
		if err.Error() != want {
			t.Errorf("it reads %q, want %q", err, want)
		}
	}
}
