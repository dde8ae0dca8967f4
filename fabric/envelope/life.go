package envelope

import "time"

// Horizon is how far the signed time of a message may be from a receiver's
// clock, and so how long one is remembered (design §4).
const Horizon = 8 * 24 * time.Hour

// Skew is how far the clocks of two hosts may be apart (design §4).
const Skew = 30 * time.Second

// The lives of design §4.
const (
	MaxLife     = 7 * 24 * time.Hour // of any message
	BriefLife   = 15 * time.Minute   // SEND and BROADCAST, unless asked otherwise
	askLife     = 2 * time.Minute    // ASK, unless asked otherwise (design §11)
	SignalLife  = 10 * time.Minute   // signals that don't follow an ask
	controlLife = 90 * time.Second   // SPAWN, STOP, TRACE, unless asked otherwise (design §11)

	// PresenceLife only keeps stale presence from piling up on a broker: a
	// receiver orders presence by boot and sequence, not by time (design §8).
	PresenceLife = time.Minute
)

// Life is how long a message of kind lives when its sender asked for asked; 0
// asks for nothing. Kinds with a life of their own ignore the wish; no life is
// over MaxLife or under a millisecond, the unit of expiresAt.
func Life(kind Kind, asked time.Duration) time.Duration {
	life, fixed := lifeOf(kind)
	if !fixed && asked > 0 {
		life = asked
	}
	return min(max(life, time.Millisecond), MaxLife)
}

func lifeOf(kind Kind) (life time.Duration, fixed bool) {
	switch kind {
	case Send, Broadcast:
		return BriefLife, false
	case Reply, Failed, Abandoned:
		return MaxLife, true
	case Ask, Answer: // an answer lives for the rest of its ask
		return askLife, false
	case Spawn, Stop, Trace:
		return controlLife, false
	case Presence:
		return PresenceLife, true
	}
	return SignalLife, true
}
