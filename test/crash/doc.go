// Command crash shows that no fault at any step breaks the promise of the
// gateway: a brief enters a pane at most once, and every brief that does not is
// reported to its sender (design §6, §14); whoever asks or answers, spawns or
// stops is told what is so; and the old daemon's mail comes once, in order.
//
// It runs whole fleets (test/fleet) under concurrent traffic and, at each step
// that test/failpoint names, on each path that a message takes through it,
// kills the gateway there, cuts its connections to the broker, kills the broker,
// or stops its store and kills it a moment later. Everything that clients were
// told, that panes received and that stores and brokers hold at the end is one
// history, which test/crash/history checks.
//
// The seed that is printed decides the order of the cases and what is random
// in their traffic; with it and -only a part of a run is repeated, as near as
// processes that run at the same time allow.
//
// # A new step
//
// A line in the code and one in failpoint.Points, and it is in the matrix with
// every fault, on every path named there:
//
//	failpoint.Hit("inbox.drained.told")
//	{"inbox.drained.told", Receiver, pull, Ordinary},
//
// If nothing but a certain situation leads there, a Setup in test/failpoint and
// a script here bring it about. Between arm and strike it does what makes the
// message come by:
//
//	failpoint.Waiting: (*world).waiting,
//
//	func (w *world) waiting(ctx context.Context, k kase) (hit bool, err error) {
//		return w.whileBusy(ctx, w.target(k), func() (bool, error) {
//			if err := w.arm(ctx, k); err != nil {
//				return false, err
//			}
//			w.traffic(ctx, k, wish{})
//			return w.strike(ctx, k)
//		})
//	}
//
// If something must not be done before a record that the step makes, the point
// is named in records of stall.go, too.
//
// A new fault is a damage in matrix.go and a case of strike, and is noted with
// killed or broken of the recorder: what is in doubt without one is held against
// the gateway. A new promise is a method of the checker, and a line of its test;
// with -logs the histories of a run are kept to try it on.
package main
