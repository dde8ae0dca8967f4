// Package roster is this gateway's view of the fleet (design §8): who lives
// here, who lives elsewhere, which hosts are alive, where each gid is at home
// (design §4), and whom an address means.
//
// Three routing keys carry everything, each under the host word of the gateway
// that signed it:
//
//	roster.<host>.<gid>      one entity, when it changed
//	roster.<host>._gateway   the heartbeat; with part and parts set it is one
//	                         part of a full announcement
//	roster.<host>._solicit   <host> asks the hosts in "targets" for a full
//	                         announcement, everyone if there are none
//
// So a gateway publishes under its own host word alone, which a broker's
// permissions can hold it to (design §13). A solicitation under the host word
// of the one that is asked is understood too, as it changes nothing.
//
// Each message carries the boot epoch of its gateway and a sequence number over
// all its presence. Old ones are ignored, a gap means that something was lost,
// a digest that differs means that the set of entities was: both end in a
// solicitation, with growing pauses as long as that does not help.
//
// Liveness is judged by arrival on our own monotonic clock alone; the wall
// clock only stamps what is written down. Nothing here knows of AMQP, keeps a
// file, or decides what a message may do: the fabric publishes and verifies,
// the store remembers homes, the outbox decides on what Resolve found. Without
// a broker the same roster serves one host.
package roster
