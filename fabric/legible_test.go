package fabric

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/test/rabbit"
)

// illegible are header tables for which the library ends its connection.
func illegible() map[string]amqp.Table {
	deep := amqp.Table{"a": "b"}
	for range 34 {
		deep = amqp.Table{"a": deep}
	}
	list := make([]any, 8200)
	for i := range list {
		list[i] = int8(1)
	}
	return map[string]amqp.Table{"deep": deep, "long": {"list": list}}
}

// Anybody with a login can publish such a message. Fails when one wedges an
// inbox, or the dead letters to which it goes, or arrives as anything but a
// refused message.
func TestHeadersThatTheLibraryCannotReadWedgeNothing(t *testing.T) {
	t.Attr("threat", "B1")
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	fl.up("hosta")
	b := fl.up("hostb")
	from, to := fl.entity("hosta"), fl.entity("hostb")
	box := b.attach(to)
	_, ch := stranger(t, uri)
	n := fl.names()
	for name, table := range illegible() {
		raw(t, ch, n.Msg(), to, &envelope.Envelope{Body: []byte("rubbish")}, table)
		raw(t, ch, n.Msg(), to, fl.letter(envelope.Send, "hosta", from, to, "after "+name), nil)
		box.take(t, "after "+name)
	}
	eventually(t, "both were refused", func() bool { return b.Refusals()["malformed_header"] == 2 })
	seen := 0
	eventually(t, "the dead letters can be looked at", func() bool {
		seen = 0
		_, err := b.Browse(t.Context(), func(*DeadLetter) Fate { seen++; return Keep })
		return err == nil && seen == 2
	})
}

// headerWith is a content header frame with a header table between two other
// properties.
func headerWith(table []byte) []byte {
	payload := []byte{0, 60, 0, 0}
	payload = binary.BigEndian.AppendUint64(payload, 7)
	payload = binary.BigEndian.AppendUint16(payload, flagContentType|flagHeaders|1<<7)
	payload = append(payload, 4, 't', 'e', 'x', 't')
	payload = binary.BigEndian.AppendUint32(payload, uint32(len(table)))
	payload = append(payload, table...)
	payload = append(payload, 2, 'i', 'd')
	frame := []byte{typeHeader, 0, 1}
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(payload)))
	return append(append(frame, payload...), 0xce)
}

// bareHeader is headerWith without one.
func bareHeader() []byte {
	payload := []byte{0, 60, 0, 0}
	payload = binary.BigEndian.AppendUint64(payload, 7)
	payload = binary.BigEndian.AppendUint16(payload, flagContentType|1<<7)
	payload = append(payload, 4, 't', 'e', 'x', 't', 2, 'i', 'd')
	frame := []byte{typeHeader, 0, 1}
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(payload)))
	return append(append(frame, payload...), 0xce)
}

// Fails when a table that can be read is cut out, one that cannot is let
// through, or anything else of the stream is changed, however it is cut into
// reads.
func TestOnlyWhatCannotBeReadIsCutOut(t *testing.T) {
	field := func(name string, value ...byte) []byte {
		return append(append([]byte{byte(len(name))}, name...), value...)
	}
	nested := func(depth int) []byte {
		b := field("k", 'V')
		for range depth {
			b = field("k", append(binary.BigEndian.AppendUint32([]byte{'F'}, uint32(len(b))), b...)...)
		}
		return b
	}
	method := []byte{1, 0, 1, 0, 0, 0, 4, 0, 60, 0, 70, 0xce}
	body := append([]byte{3, 0, 1, 0, 0, 0, 5}, "hello\xce"...)
	for name, c := range map[string]struct {
		table []byte
		kept  bool
	}{
		"empty":           {nil, true},
		"a string":        {field("v", 'S', 0, 0, 0, 1, '1'), true},
		"every fixed one": {bytes.Join([][]byte{field("a", 't', 1), field("b", 'l', 0, 0, 0, 0, 0, 0, 0, 1), field("c", 'D', 0, 0, 0, 0, 1), field("d", 'V')}, nil), true},
		"an array":        {field("a", 'A', 0, 0, 0, 3, 'b', 1, 'V'), true},
		"nested":          {nested(maxTableDepth), true},
		"nested too deep": {nested(maxTableDepth + 1), false},
		"an unknown type": {field("a", 'L', 0, 0, 0, 0, 0, 0, 0, 1), false},
		"a cut string":    {field("v", 'S', 0, 0, 0, 9, '1'), false},
		"a cut number":    {field("v", 'I', 0, 0), false},
		"a name alone":    {field("v"), false},
		"too many":        {bytes.Repeat(field("v", 'V'), maxTableFields+1), false},
		"a huge length":   {field("v", 'F', 0xff, 0xff, 0xff, 0xff), false},
	} {
		want := headerWith(c.table)
		if !c.kept {
			want = bareHeader()
		}
		stream := bytes.Join([][]byte{method, headerWith(c.table), body, headerWith(nil), body}, nil)
		want = bytes.Join([][]byte{method, want, body, headerWith(nil), body}, nil)
		for _, step := range []int{1, 3, 1 << 16} {
			got, err := io.ReadAll(inSteps{newLegible(conn{r: bytes.NewReader(stream)}), step})
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s, %d bytes a read: %x, %v; want %x", name, step, got, err, want)
			}
		}
	}
}

// inSteps reads at most step bytes at once.
type inSteps struct {
	r    io.Reader
	step int
}

func (r inSteps) Read(p []byte) (int, error) { return r.r.Read(p[:min(len(p), r.step)]) }

// conn is a connection that says what r holds.
type conn struct {
	net.Conn
	r io.Reader
}

func (c conn) Read(p []byte) (int, error) { return c.r.Read(p) }

// Fails when what a broker sends ends the process, grows on its way, or has a
// table that a second look would cut out.
func FuzzLegible(f *testing.F) {
	f.Attr("threat", "B4")
	f.Add(headerWith([]byte{1, 'v', 'S', 0, 0, 0, 1, '1'}))
	f.Add(headerWith([]byte{1, 'v', 'A', 0, 0, 0, 9, 'F'}))
	whole := headerWith(nil)
	f.Add(append(bytes.Repeat(whole, 3), whole[:len(whole)-1]...))                               // the last one cut off
	f.Add(headerWith(bytes.Repeat([]byte{0, 'V'}, maxTableFields+1)))                            // too many
	f.Add(headerWith([]byte{1, 'v', 'F', 0xff, 0xff, 0xff, 0xff}))                               // longer than all
	f.Add([]byte{typeHeader, 0, 1, 0, 0, 0, 0, 0xce})                                            // empty
	f.Add([]byte{typeHeader, 0, 1, 0x7f, 0xff, 0xff, 0xff, 1})                                   // huge
	f.Add([]byte{typeHeader, 0, 1, 0, 0, 0, 15, 14: 0, 15: 0, 19: 0xe0, 20: 0, 21: 9, 22: 0xce}) // a string beyond the end
	legibly := func(stream []byte) []byte {
		out, err := io.ReadAll(newLegible(conn{r: bytes.NewReader(stream)}))
		_ = err // a stream that ends early is an end of the connection
		return out
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		once := legibly(bytes.Clone(stream))
		if len(once) > len(stream) {
			t.Errorf("%d bytes became %d", len(stream), len(once))
		}
		if twice := legibly(bytes.Clone(once)); !bytes.Equal(once, twice) {
			t.Errorf("%x becomes %x, which becomes %x", stream, once, twice)
		}
	})
}

// A broker that ends the handshake says why to the reader; the library tells
// whoever writes next only that nothing is open. Fails when a person is shown
// that instead of the reason, or the reason in place of another error.
func TestWhyTheHandshakeEndedIsTold(t *testing.T) {
	ours, brokers := net.Pipe()
	l, other := newLegible(ours), errors.New("username or password not allowed")
	for i, want := range []error{amqp.ErrClosed, errTLSPort} {
		if i > 0 {
			go func() { _, _ = brokers.Write([]byte{tlsAlert, 3, 3, 0, 2, 2, 70}) }() // ends with the pipe
			if _, err := l.Read(make([]byte, 16)); !errors.Is(err, errTLSPort) {
				t.Fatalf("reading ends with %v", err)
			}
			if err := brokers.Close(); err != nil {
				t.Error(err)
			}
			if _, err := l.Read(make([]byte, 16)); err == nil {
				t.Error("it can be read again")
			}
		}
		if got := l.why(amqp.ErrClosed); !errors.Is(got, want) {
			t.Errorf("it ended because of %v, want %v", got, want)
		}
		if got := l.why(other); !errors.Is(got, other) {
			t.Errorf("another error became %v", got)
		}
	}
	if err := ours.Close(); err != nil {
		t.Error(err)
	}
}
