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
