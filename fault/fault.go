// Package fault holds the one error type of the gateway: a code that programs
// decide on, a sentence that tells a person or an agent what happened and what
// to do next, and the cause for the log.
//
// The codes are the ones of design §11 and part of the public contract; no
// layer invents its own. Nothing else lives here.
package fault

import (
	"errors"
	"fmt"
)

// Code names what went wrong, in the words of design §11.
type Code string

// The error codes a client can see (design §11).
const (
	NotAuthenticated   Code = "NOT_AUTHENTICATED"
	NotAllowed         Code = "NOT_ALLOWED"
	BadRequest         Code = "BAD_REQUEST"
	Conflict           Code = "CONFLICT"
	Loop               Code = "LOOP"
	RateLimited        Code = "RATE_LIMITED"
	TooLarge           Code = "TOO_LARGE"
	BadContent         Code = "BAD_CONTENT"
	UnknownRecipient   Code = "UNKNOWN_RECIPIENT"
	AmbiguousRecipient Code = "AMBIGUOUS_RECIPIENT"
	HostOffline        Code = "HOST_OFFLINE"
	BrokerDown         Code = "BROKER_DOWN"
	BrokerRefused      Code = "BROKER_REFUSED"
	Unroutable         Code = "UNROUTABLE"
	Unconfirmed        Code = "UNCONFIRMED"
	InDoubt            Code = "IN_DOUBT"
	Expired            Code = "EXPIRED"
	InboxFull          Code = "INBOX_FULL"
	Refused            Code = "REFUSED"
	HerdrDown          Code = "HERDR_DOWN"
	PaneGone           Code = "PANE_GONE"
	NotInjected        Code = "NOT_INJECTED"
	NoWaiter           Code = "NO_WAITER"
	TooLate            Code = "TOO_LATE"
	Abandoned          Code = "ABANDONED"
	ProfileUnknown     Code = "PROFILE_UNKNOWN"
	SpawnFailed        Code = "SPAWN_FAILED"
	SpawnTimeout       Code = "SPAWN_TIMEOUT"
	StoreUnavailable   Code = "STORE_UNAVAILABLE"
	Internal           Code = "INTERNAL"
)

// Error is the error every layer returns when a caller has to decide on it or
// a user has to read it. Sentence never holds a body or a token.
type Error struct {
	Code     Code
	Sentence string // what happened and what to do next; for people and agents
	Cause    error  // for the log; may be nil
}

// New makes an Error without a cause.
func New(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Sentence: fmt.Sprintf(format, args...)}
}

// Wrap makes an Error that keeps cause for errors.Is, errors.As and the log.
func Wrap(cause error, code Code, format string, args ...any) *Error {
	return &Error{Code: code, Sentence: fmt.Sprintf(format, args...), Cause: cause}
}

// Error returns "CODE: sentence", with the cause behind it if there is one.
func (e *Error) Error() string {
	if e.Cause == nil {
		return string(e.Code) + ": " + e.Sentence
	}
	return string(e.Code) + ": " + e.Sentence + " (" + e.Cause.Error() + ")"
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// CodeOf returns the code that err carries, Internal if it carries none, and
// "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return Internal
}

// Is reports whether err carries code.
func Is(err error, code Code) bool { return err != nil && CodeOf(err) == code }

// From returns err as an *Error; one that carries no code becomes Internal
// with err as its cause. From(nil) is nil.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return Wrap(err, Internal, "the gateway met an error of its own; see its log")
}
