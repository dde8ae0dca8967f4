// Package herdr is the last hop to panes: the client of herdr's JSON socket,
// the monitor that watches what herdr shows, the status gate, and the injector
// that pastes one text into one pane and says truthfully what became of it.
//
// What differs between agent kinds is data in kinds.go; the steps are those of
// the injection procedure (herdr socket reference §10) and the same for all.
// Text from peers is made safe here (text.go) and framed here (frame.go).
//
// Nothing here knows of brokers, inboxes, outboxes or the store.
package herdr
