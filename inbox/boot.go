package inbox

import (
	"context"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// settleOldInjections reports every brief that an earlier run was injecting
// when it ended: it may or may not have reached the pane, so it is in doubt
// and never injected again (design §6). A crash in here repeats it; the
// report's id is derived, so it is told once.
func (in *Inbox) settleOldInjections(ctx context.Context) error {
	var all []store.Brief
	err := in.cfg.Store.View(func(tx *store.Tx) (err error) {
		all, err = tx.AllBriefs()
		return err
	})
	if err != nil {
		return err
	}
	for _, b := range all {
		if b.State != briefInjecting || b.Boot == in.cfg.Boot {
			continue
		}
		report := envelope.Report{
			Kind: envelope.Failed, Reason: string(fault.InDoubt), MsgID: b.MsgID, TraceID: b.TraceID,
			Sender: b.Sender, SenderHost: b.SenderHost, Recipient: b.GID, Hops: b.Hops,
		}
		if err := in.untilStored(ctx, func() error { return in.cfg.Reports.Final(ctx, report) }); err != nil {
			return err
		}
		err := in.untilStored(ctx, func() error {
			return in.cfg.Store.Write(ctx, func(tx *store.Tx) error {
				seen, _, err := tx.SeenOf(b.TS, b.MsgID, b.GID)
				if err != nil {
					return err
				}
				seen.Outcome, seen.Reason = outcomeFailed, string(fault.InDoubt)
				if err := tx.PutSeen(b.TS, b.MsgID, b.GID, seen); err != nil {
					return err
				}
				return changeBrief(tx, b.GID, b.MsgID, briefInjecting, briefInDoubt)
			})
		})
		if err != nil {
			return err
		}
		in.log.Warn("a brief was being injected when the daemon last ended; its sender is told that it is in doubt",
			"msg", b.MsgID, "trace", b.TraceID, "to", b.GID)
	}
	return nil
}
