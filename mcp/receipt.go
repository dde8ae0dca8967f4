package mcp

import (
	"context"
	"sync"
)

// Receipt tells whoever produced a result whether the response that carried it
// was written to the client. "Written" is all that can be known: the kernel
// took the bytes (library facts §1).
type Receipt struct {
	mu    sync.Mutex
	hooks []func(written bool)
	done  bool
}

type receiptKey struct{}

// WithReceipt puts a new receipt into ctx; whoever writes the response calls
// Settle when it is out or lost.
func WithReceipt(ctx context.Context) (context.Context, *Receipt) {
	r := &Receipt{}
	return context.WithValue(ctx, receiptKey{}, r), r
}

// OnWritten has fn called once the response is written (true) or lost (false).
// Without a receipt in ctx, or after Settle, the result counts as lost.
func OnWritten(ctx context.Context, fn func(written bool)) {
	r, _ := ctx.Value(receiptKey{}).(*Receipt)
	if r == nil {
		fn(false)
		return
	}
	r.mu.Lock()
	if r.done {
		r.mu.Unlock()
		fn(false)
		return
	}
	r.hooks = append(r.hooks, fn)
	r.mu.Unlock()
}

// ReceiptFrom returns the receipt of ctx, nil if nobody will tell whether the
// response was written.
func ReceiptFrom(ctx context.Context) *Receipt {
	r, _ := ctx.Value(receiptKey{}).(*Receipt)
	return r
}

// Pending reports whether anybody waits for this receipt; of nil nobody does.
func (r *Receipt) Pending() bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.hooks) > 0
}

// Settle runs the hooks, in their order, once.
func (r *Receipt) Settle(written bool) {
	r.mu.Lock()
	hooks := r.hooks
	r.hooks, r.done = nil, true
	r.mu.Unlock()
	for _, fn := range hooks {
		fn(written)
	}
}
