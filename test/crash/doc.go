// Command crash shows that no fault at any step breaks the promise of the
// gateway: a brief enters a pane at most once, and every brief that does not is
// reported to its sender (design §6, §14).
//
// It runs whole fleets (test/fleet) under concurrent traffic and, at each step
// that test/failpoint names, kills the gateway there, kills the broker, or cuts
// the connection. Everything that clients were told, that panes received and
// that stores and brokers hold at the end is one history, which
// test/crash/history checks.
//
// A new step is a line in the code and one in failpoint.Points: it is in the
// matrix then. A new way to get somewhere is a Setup there and a function in
// scripts.go here.
package main
