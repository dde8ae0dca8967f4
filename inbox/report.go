package inbox

import (
	"context"

	"fleetd/fabric/envelope"
	"fleetd/store"
)

func (in *Inbox) report(e *envelope.Envelope, gid string, kind envelope.Kind, reason string) envelope.Report {
	return envelope.Report{
		Kind: kind, Reason: reason, MsgID: e.MsgID, TraceID: e.TraceID,
		Sender: e.From, SenderHost: e.Signer, Recipient: gid, Hops: e.Hops,
	}
}

// reportOf is a report on a brief on record, its kind still open.
func reportOf(b store.Brief) envelope.Report {
	return envelope.Report{
		MsgID: b.MsgID, TraceID: b.TraceID, Sender: b.Sender, SenderHost: b.SenderHost, Recipient: b.GID, Hops: b.Hops,
	}
}

// progress tells the sender of a brief how it stands; nobody waits to hear
// this of other mail.
func (in *Inbox) progress(e *envelope.Envelope, gid string, kind envelope.Kind, reason string) {
	if e.Kind.Brief() {
		in.cfg.Reports.Progress(in.report(e, gid, kind, reason))
	}
}

// final tells the sender of a brief its end. Other mail has no end to tell: a
// dead reply is logged where it dies.
func (in *Inbox) final(ctx context.Context, e *envelope.Envelope, gid string, kind envelope.Kind, reason string) error {
	if !e.Kind.Brief() && e.Kind.Known() {
		return nil
	}
	return in.cfg.Reports.Final(ctx, in.report(e, gid, kind, reason))
}
