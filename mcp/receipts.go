package mcp

import (
	"sync"
	"time"

	"fleetd/fault"

	"github.com/google/uuid"
)

// The two steps of a receipt that the next hop confirms: the stdio bridge
// and the command line have an answer in their hands before the agent or the
// user has it. They ask with
// ReceiptHeader "explicit" and get, in the same header of the response, the id
// to confirm with.
const (
	ReceiptHeader   = "Bridged-Receipt"
	ReceiptExplicit = "explicit"
	// ReceiptTied in ReceiptTieHeader says that the asker keeps the connection
	// of the call open until it has confirmed: closed before, it is gone.
	ReceiptTieHeader = "Bridged-Receipt-Tie"
	ReceiptTied      = "connection"
	// receiptTimeout is how long a batch stays offered without a word.
	receiptTimeout = 30 * time.Second
)

// ReceiptArgs confirm a receipt: POST /api/v1/receipt.
type ReceiptArgs struct {
	ID      string `json:"id"`
	Written bool   `json:"written"`
}

// receipts holds what was handed to another hop and not confirmed yet.
type receipts struct {
	mu     sync.Mutex
	held   map[string]*heldReceipt
	closed bool
}

type heldReceipt struct {
	gid     string
	receipt *Receipt
	timer   *time.Timer
	settled chan struct{} // closed when it was confirmed, or is lost
}

// hold keeps the receipt under a new id until it is confirmed; after
// receiptTimeout it counts as lost. "" means that it is lost already.
func (r *receipts) hold(gid string, receipt *Receipt) string {
	id := uuid.NewString()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ""
	}
	if r.held == nil {
		r.held = map[string]*heldReceipt{}
	}
	r.held[id] = &heldReceipt{gid: gid, receipt: receipt, settled: make(chan struct{}), timer: time.AfterFunc(receiptTimeout, func() {
		_ = r.confirm(gid, id, false) // confirmed in the meantime: then it is settled
	})}
	return id
}

// confirm settles the receipt that id names, once, for the entity it was given to.
func (r *receipts) confirm(gid, id string, written bool) error {
	r.mu.Lock()
	h, ok := r.held[id]
	if ok && h.gid == gid {
		delete(r.held, id)
	}
	r.mu.Unlock()
	if !ok || h.gid != gid {
		return fault.New(fault.Conflict, "this receipt is not open: it was confirmed, or its time of %s was over and the mail will be offered again.", receiptTimeout)
	}
	h.settle(written)
	return nil
}

func (h *heldReceipt) settle(written bool) {
	h.timer.Stop()
	h.receipt.Settle(written)
	close(h.settled)
}

// tie counts the receipt as lost if gone is closed before it is confirmed, and
// returns when it is settled or stop is closed.
func (r *receipts) tie(gid, id string, gone, stop <-chan struct{}) {
	r.mu.Lock()
	h, open := r.held[id]
	r.mu.Unlock()
	if !open {
		return
	}
	select {
	case <-h.settled:
	case <-gone:
		_ = r.confirm(gid, id, false) // confirmed in the meantime: then it is settled
	case <-stop:
	}
}

// close counts everything that is still open as lost.
func (r *receipts) close() {
	r.mu.Lock()
	held := r.held
	r.held, r.closed = nil, true
	r.mu.Unlock()
	for _, h := range held {
		h.settle(false)
	}
}
