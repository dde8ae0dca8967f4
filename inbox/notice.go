package inbox

import (
	"fmt"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// content is what a reader gets as the text of a message: its body, or for a
// report, which has none, the report in words.
func (in *Inbox) content(e *envelope.Envelope) string {
	if len(e.Body) == 0 {
		return Sentence(e, in.cfg.Names.Name(e.From))
	}
	return string(e.Body)
}

// Sentence says in words what a FAILED, ABANDONED or INJECTED means for the
// one who gets it; other kinds have a body instead. from is the recipient of
// the message reported on, as people call it.
func Sentence(e *envelope.Envelope, from string) string {
	what := fmt.Sprintf("Your message %s to %s", e.InReplyTo, from)
	switch e.Kind {
	case envelope.Injected:
		return what + " has been handed over; an answer will come as mail."
	case envelope.Abandoned:
		return what + " will not be answered: its recipient ended before it did. Send it to somebody else if it still matters."
	case envelope.Failed:
		return what + " " + failed(fault.Code(e.Reason))
	}
	return ""
}

func failed(reason fault.Code) string {
	switch reason {
	case fault.Expired:
		return "expired before it could be handed over; it will not arrive. Send it anew if it still matters."
	case fault.InDoubt:
		return "is in doubt: it may or may not have been handed over. Do not send it again blindly; ask the recipient or look at its pane."
	case fault.PaneGone:
		return "was not handed over: its recipient has ended and will not come back. Send it to somebody else."
	case fault.InboxFull:
		return "was not accepted: the inbox is full. Wait until it has been read, then send it again."
	case fault.Unroutable:
		return "did not arrive: that inbox does not exist any more. Ask bridge_roster who is there."
	case fault.NotAllowed:
		return "was refused: that host takes no messages from yours. Ask whoever runs it, or send to somebody on another host."
	case fault.RateLimited:
		return "was refused: you sent to it too often. Wait a minute, then send it again."
	case fault.TooLarge, fault.BadContent:
		return fmt.Sprintf("was refused (%s): the agent's pane cannot take this text. Send a shorter one, of plain characters.", reason)
	case fault.Refused:
		return "was refused by the recipient's gateway; its log says why. Send it to somebody else, or tell whoever runs that host."
	}
	return fmt.Sprintf("failed with %s; it was not handed over. Send it again if it still matters.", reason)
}
