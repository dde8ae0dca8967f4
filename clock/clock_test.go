package clock

import (
	"testing"
	"time"
)

// Fails if one step is seen twice, a slow clock counts as one, or what a step
// left out is taken for past within a day, or never.
func TestAStepIsSeenOnceAndPausesForAMinute(t *testing.T) {
	var w Watch
	wall := time.Now()
	look := func(steady bool, step, ahead, walls, up time.Duration) {
		t.Helper()
		m := w.Look(wall.Add(walls), up)
		if m.Steady != steady || m.Step != step || m.Wall.Sub(m.Past) != ahead {
			t.Errorf("at %s: steady %t, step %s, %s ahead", up, m.Steady, m.Step, m.Wall.Sub(m.Past))
		}
	}
	look(true, 0, 0, 0, 0)
	look(true, 0, 0, 500*time.Millisecond, 500*time.Millisecond)
	look(true, 0, 0, 2400*time.Millisecond, time.Second)
	look(false, time.Hour, time.Hour, 2400*time.Millisecond+time.Hour+time.Second, 2*time.Second)
	look(false, 0, time.Hour, time.Hour+time.Minute, time.Minute)
	look(true, 0, time.Hour, time.Hour+time.Minute+4*time.Second, time.Minute+2*time.Second)
	look(false, -time.Hour, 0, time.Minute+5*time.Second, time.Minute+3*time.Second)
	look(false, time.Hour, time.Hour, time.Hour+time.Minute+6*time.Second, time.Minute+4*time.Second)
	day := 24*time.Hour + time.Minute
	look(true, 0, time.Hour, time.Hour+day+5*time.Second, day+3*time.Second)
	look(true, 0, 0, time.Hour+day+6*time.Second, day+4*time.Second)
}

// Fails if steps that come every day add up: on a host that sleeps at night
// nothing would ever be a day old, and all that is kept for a day for ever.
func TestStepsOfEveryDayDoNotAddUp(t *testing.T) {
	const awake, asleep = 16 * time.Hour, 8 * time.Hour
	var w Watch
	wall, up := time.Now(), time.Duration(0)
	w.Look(wall, up)
	for day := range 30 {
		for range int(awake / time.Minute) {
			wall, up = wall.Add(time.Minute), up+time.Minute
			w.Look(wall, up)
		}
		wall, up = wall.Add(asleep+time.Second), up+time.Second
		ahead := func(m Moment) time.Duration { return m.Wall.Sub(m.Past) }
		if got := ahead(w.Look(wall, up)); got < asleep || got > 2*asleep {
			t.Fatalf("night %d: %s are not taken for past", day+1, got)
		}
	}
	for range 40 { // and of a clock that runs too fast
		wall, up = wall.Add(30*time.Minute+time.Hour), up+time.Hour
		w.Look(wall, up)
		for range 100 {
			wall, up = wall.Add(3*time.Second), up+time.Second/2
			w.Look(wall, up)
		}
	}
	if n := len(w.ahead); n > 25 {
		t.Errorf("%d hours of steps are remembered of one day", n)
	}
}
