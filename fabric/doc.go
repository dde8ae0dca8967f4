// Package fabric is the broker between the gateways: connections and their
// state, topology, the claim on the host id, publishing and its outcomes,
// verification of what arrives, and the consumers of every queue a gateway
// reads (design §3, §4).
//
// Everything that only matters with AMQP stays here; inbox and outbox get and
// give plain values of fabric/envelope. What a message means to its recipient,
// who lives where and what is remembered is decided elsewhere, behind the
// interfaces of Deps.
//
// A gateway's slice of the broker lives and dies as one session: two
// connections, one that publishes and one that consumes, and all that was
// declared on them under one fresh connection word. When either connection is
// lost the whole session ends, and the next one declares everything again.
package fabric
