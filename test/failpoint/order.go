package failpoint

import (
	"fmt"
	"strconv"
	"strings"
)

// Action is what happens at a hit.
type Action string

// The actions. Pause is for a listener on the control socket alone.
//
// Stall is a disk that answers no more: the goroutine goes on, and no commit
// begins from there on until the process ends. What needed a record by then and
// did not wait for it is seen to be done without one, whatever else is written
// at the time.
const (
	Kill  Action = "kill"  // SIGKILL: nothing is flushed, nobody says goodbye
	Hang  Action = "hang"  // the goroutine stays there for ever
	Panic Action = "panic" // what a defect at this place would do
	Pause Action = "pause" // the goroutine waits until the listener says go
	Stall Action = "stall" // the store's writer stands still, and nothing else
)

// Order is one armed point. The zero value is none.
//
// On the control socket it is a line: the listener writes an order, "none", or
// "go" for a paused goroutine; the process answers each order with "armed" and
// writes "hit NAME" when one strikes. The first line comes from the listener,
// as soon as the process has connected, which it does at its first hit of any
// point.
type Order struct {
	Name   string
	Nth    int // from the time of arming, 1 or more
	Action Action
}

// String writes the order as BRIDGED_FAILPOINT has it.
func (o Order) String() string {
	if o.Name == "" {
		return "none"
	}
	return fmt.Sprintf("%s:%d=%s", o.Name, o.Nth, o.Action)
}

// ParseOrder reads what String writes.
func ParseOrder(text string) (Order, error) {
	if text == "none" {
		return Order{}, nil
	}
	place, action, found := strings.Cut(text, "=")
	name, nth, counted := strings.Cut(place, ":")
	o := Order{Name: name, Nth: 1, Action: Action(action)}
	switch o.Action {
	case Kill, Hang, Panic, Pause, Stall:
	default:
		found = false
	}
	if _, known := Find(name); !known || !found {
		return Order{}, fmt.Errorf("%q is no order for a failpoint: write NAME[:NTH]=kill|hang|panic|stall with a name of the table", text)
	}
	if counted {
		n, err := strconv.Atoi(nth)
		if err != nil || n < 1 {
			return Order{}, fmt.Errorf("%q asks for hit %q; the first is 1", text, nth)
		}
		o.Nth = n
	}
	return o, nil
}
