package main

import (
	"context"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"fleetd/mcp"
)

// withReceipt is the context of a call that may bring mail: the daemon keeps
// the mail until settle says what became of the output.
func (a *app) withReceipt(ctx context.Context) context.Context {
	if a.KeepPipe != nil {
		a.KeepPipe()
	}
	ctx, a.receipt = mcp.WithReceipt(ctx)
	return ctx
}

// settle tells the daemon, the first time it is called, whether the mail was
// shown. If the daemon cannot be told, it offers the mail again.
func (a *app) settle(shown bool) {
	if a.receipt != nil {
		a.receipt.Settle(shown)
	}
}

func (a *app) nowhere(w io.Writer) bool { return a.Nowhere != nil && a.Nowhere(w) }

// nowhere reports whether w was closed when the process began: the runtime then
// puts /dev/null in its place, open for reading and writing. A shell's
// >/dev/null is open for writing only.
func nowhere(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	got, err := f.Stat()
	if err != nil {
		return false
	}
	null, err := os.Stat(os.DevNull)
	if err != nil || !os.SameFile(got, null) {
		return false
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_ACCMODE == unix.O_RDWR
}
