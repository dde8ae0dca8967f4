package inbox

import (
	"context"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
	"fleetd/test/failpoint"
)

// settleOldInjections settles every brief that an earlier run was injecting
// when it ended. What the seen-set has injected is open. The others may or may
// not have reached the pane, so they are in doubt: reported, and never injected
// again (design §6). A crash in here repeats it; the report's id is derived, so
// it is told once.
func (in *Inbox) settleOldInjections(ctx context.Context) error {
	var doubtful []store.Brief
	err := in.untilStored(ctx, func(ctx context.Context) error {
		return in.cfg.Store.Write(ctx, func(tx *store.Tx) (err error) {
			doubtful, err = in.openInjected(tx)
			return err
		})
	})
	if err != nil {
		return err
	}
	for _, b := range doubtful {
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

// openInjected makes open what is known to be in, and returns the rest.
func (in *Inbox) openInjected(tx *store.Tx) (doubtful []store.Brief, err error) {
	all, err := tx.AllBriefs()
	if err != nil {
		return nil, err
	}
	for _, b := range all {
		if b.State != briefInjecting || b.Boot == in.cfg.Boot {
			continue
		}
		injected, err := wasInjected(tx, b)
		if err != nil {
			return nil, err
		}
		if !injected {
			doubtful = append(doubtful, b)
			continue
		}
		b.State = briefOpen
		if err := tx.PutBrief(b); err != nil {
			return nil, err
		}
	}
	return doubtful, nil
}

func (in *Inbox) settleOld(ctx context.Context, b store.Brief) error {
	r := reportOf(b)
	r.Kind, r.Reason = envelope.Failed, string(fault.InDoubt)
	return in.untilStored(ctx, func(ctx context.Context) error {
		failpoint.Hit("inbox.boot.before")
		if err := in.cfg.Reports.Final(ctx, r); err != nil {
			return err
		}
		failpoint.Hit("inbox.boot.reported")
		err := in.cfg.Store.Write(ctx, func(tx *store.Tx) error {
			if err := failSeen(tx, b, string(fault.InDoubt)); err != nil {
				return err
			}
			return in.changeBrief(tx, b.GID, b.MsgID, briefInjecting, briefInDoubt)
		})
		failpoint.Hit("inbox.boot.settled")
		return err
	})
}

func wasInjected(tx *store.Tx, b store.Brief) (bool, error) {
	seen, _, err := tx.SeenOf(b.TS, b.MsgID, b.GID)
	return seen.Outcome == store.Injected, err
}

// failSeen notes that a brief on record failed.
func failSeen(tx *store.Tx, b store.Brief, reason string) error {
	seen, found, err := tx.SeenOf(b.TS, b.MsgID, b.GID)
	if err != nil || !found {
		return err
	}
	seen.Outcome, seen.Reason = store.Failed, reason
	return tx.PutSeen(b.TS, b.MsgID, b.GID, seen)
}
