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
		if err := in.settleOld(ctx, b); err != nil {
			if ctx.Err() != nil {
				return err
			}
			// The next start tries again; the others need not wait for it.
			in.log.Error("a brief in doubt could not be reported", "msg", b.MsgID, "trace", b.TraceID, "to", b.GID, "error", err)
			continue
		}
		in.log.Warn("a brief was being injected when the daemon last ended; its sender is told that it is in doubt",
			"msg", b.MsgID, "trace", b.TraceID, "to", b.GID)
	}
	return nil
}

func (in *Inbox) settleOld(ctx context.Context, b store.Brief) error {
	r := reportOf(b)
	r.Kind, r.Reason = envelope.Failed, string(fault.InDoubt)
	return in.untilStored(ctx, func(ctx context.Context) error {
		if err := in.cfg.Reports.Final(ctx, r); err != nil {
			return err
		}
		return in.cfg.Store.Write(ctx, func(tx *store.Tx) error {
			if err := failSeen(tx, b, string(fault.InDoubt)); err != nil {
				return err
			}
			return in.changeBrief(tx, b.GID, b.MsgID, briefInjecting, briefInDoubt)
		})
	})
}

// failSeen notes that a brief on record failed.
func failSeen(tx *store.Tx, b store.Brief, reason string) error {
	seen, found, err := tx.SeenOf(b.TS, b.MsgID, b.GID)
	if err != nil || !found {
		return err
	}
	seen.Outcome, seen.Reason = outcomeFailed, reason
	return tx.PutSeen(b.TS, b.MsgID, b.GID, seen)
}
