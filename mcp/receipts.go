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
	r.held[id] = &heldReceipt{gid: gid, receipt: receipt, timer: time.AfterFunc(receiptTimeout, func() {
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
	h.timer.Stop()
	h.receipt.Settle(written)
	return nil
}

// close counts everything that is still open as lost.
func (r *receipts) close() {
	r.mu.Lock()
	held := r.held
	r.held, r.closed = nil, true
	r.mu.Unlock()
	for _, h := range held {
		h.timer.Stop()
		h.receipt.Settle(false)
	}
}
