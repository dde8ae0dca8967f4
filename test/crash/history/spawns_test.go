package history

import "testing"

// agents is one that was spawned and lives, one that was stopped, and one whose
// launch failed.
func agents() History {
	return History{
		Hosts: []string{"a", "b"},
		Spawns: []Spawn{
			{Case: 1, Token: "one", From: "m@a", Host: "b", GIDs: []string{"g-1"}, Asks: true, Calls: []SpawnCall{
				{Call{Began: at(1), Ended: at(2)}, ""}, {Call{Began: at(3), Ended: at(6), State: "spawned"}, "g-1"},
			}},
			{Case: 2, Token: "two", From: "m@a", Host: "b", GIDs: []string{"g-2"}, Asks: true, Calls: []SpawnCall{
				{Call{Began: at(1), Ended: at(4), State: "spawned"}, "g-2"},
			}},
			{Case: 3, Token: "three", From: "m@a", Host: "b", GIDs: []string{"g-3"}, Asks: true, Calls: []SpawnCall{
				{Call{Began: at(1), Ended: at(4), Code: "SPAWN_FAILED"}, ""},
			}},
		},
		Stops: []Stop{{Case: 2, GID: "g-2", From: "m@a", Calls: []Call{{Began: at(7), Ended: at(9), State: "stopped"}}}},
		Panes: []Pane{{"b", "g-1", at(2), true}, {"b", "g-2", at(2), false}, {"b", "g-3", at(2), false}},
		Entities: []Entity{
			{"b", "g-1", "live", []string{"a", "b"}}, {"b", "g-2", "gone", nil},
		},
	}
}

// Each fails when its verdict is not found, or another one as well, or
// something is held against a history that kept the promise.
func TestVerdictsOnAgents(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(h *History)
		want []Verdict
	}{
		{"all is well", func(*History) {}, nil},
		{"two panes for one spawn id", func(h *History) { h.Panes = append(h.Panes, Pane{"b", "g-1", at(5), false}) }, []Verdict{Doubled}},
		{"one wish, two ids", func(h *History) { h.Spawns[0].GIDs = append(h.Spawns[0].GIDs, "g-9") }, []Verdict{Doubled}},
		{"said to live before it had a pane", func(h *History) { h.Panes[0].At = at(8) }, []Verdict{Untrue}},
		{"said to live, and there is nothing", func(h *History) { h.Panes, h.Entities = h.Panes[1:], h.Entities[1:] }, []Verdict{Untrue, Lost}},
		{"said to live, and its pane is gone", func(h *History) { h.Panes[0].Open = false }, []Verdict{Untrue, Lost}},
		{"it had ended before it was stopped", func(h *History) { h.Stops[0].Before = true }, []Verdict{Lost}},
		{"told not started while it runs", func(h *History) {
			h.Panes[2].Open = true
			h.Entities = append(h.Entities, Entity{"b", "g-3", "live", []string{"a", "b"}})
		}, []Verdict{Untrue}},
		{"told that nothing was started, and a pane came of it", func(h *History) {
			h.Spawns[0].Calls[0].Code = "BROKER_DOWN"
		}, []Verdict{Untrue}},
		{"the same, and the next call started it", func(h *History) {
			h.Spawns[0].Calls[0].Code, h.Panes[0].At = "BROKER_DOWN", at(4)
		}, nil},
		{"it lives, and has no task", func(h *History) { h.Spawns[0].Owes = true }, []Verdict{Lost}},
		{"another one gets its task", func(h *History) {
			h.Sends = []Send{{Case: 1, Token: "one", From: "m@a", To: "spawned@b", Worker: true}}
			h.Pastes = []Paste{{At: at(3), Worker: "spawned@b", Text: "one", GID: "g-2"}}
			h.Prompts = []Prompt{{at(3), "spawned@b", "one"}}
		}, []Verdict{Untrue}},
		{"it gets its task", func(h *History) {
			h.Sends = []Send{{Case: 1, Token: "one", From: "m@a", To: "spawned@b", Worker: true}}
			h.Pastes = []Paste{{At: at(3), Worker: "spawned@b", Text: "one", GID: "g-1"}}
			h.Prompts = []Prompt{{at(3), "spawned@b", "one"}}
		}, nil},
		{"its task was not sent, and it never lived", func(h *History) { h.Spawns[2].Owes = true }, nil},
		{"told that nothing was started, of what an earlier call did", func(h *History) {
			h.Spawns[1].Calls = append(h.Spawns[1].Calls, SpawnCall{Call{Began: at(5), Ended: at(6), Code: "BROKER_DOWN"}, ""})
		}, []Verdict{Untrue}},
		{"said to live and not to have been started", func(h *History) {
			h.Spawns[1].Calls = append(h.Spawns[1].Calls, SpawnCall{Call{Began: at(10), Ended: at(11), Code: "SPAWN_FAILED"}, ""})
		}, []Verdict{Untrue}},
		{"who asked never heard", func(h *History) {
			h.Spawns[2].Calls[0].Code = "SPAWN_TIMEOUT"
		}, []Verdict{Unreported}},
		{"who asked once did not hear", func(h *History) {
			h.Spawns[2].Calls[0].Code, h.Spawns[2].Asks = "SPAWN_TIMEOUT", false
		}, nil},
		{"a pane that nobody knows", func(h *History) { h.Panes = append(h.Panes, Pane{"b", "g-8", at(5), true}) }, []Verdict{Unreported}},
		{"an agent that is launched for ever", func(h *History) {
			h.Entities = append(h.Entities, Entity{"b", "g-7", "launching", nil})
		}, []Verdict{Unreported}},
		{"an end that does not get on", func(h *History) {
			h.Stops[0].Calls[0].State, h.Entities[1].State = "stopping", "stopping"
		}, []Verdict{Unreported}},
		{"stopped, and lives again", func(h *History) {
			h.Entities[1].State, h.Entities[1].Seen, h.Panes[1].Open = "live", []string{"b"}, true
		}, []Verdict{Untrue}},
		{"stopped, and gets a pane", func(h *History) { h.Panes = append(h.Panes, Pane{"b", "g-2", at(12), false}) }, []Verdict{Doubled, Untrue}},
		{"gone, and in a roster", func(h *History) { h.Entities[1].Seen = []string{"a"} }, []Verdict{Untrue}},
		{"lives, and a roster lacks it", func(h *History) { h.Entities[0].Seen = []string{"b"} }, []Verdict{Untrue}},
		{"a stop that nobody confirms", func(h *History) { h.Stops[0].Calls[0].State = "" }, []Verdict{Unreported}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := agents()
			c.make(&h)
			found := map[Verdict]int{}
			for _, f := range Check(h) {
				found[f.Verdict]++
			}
			want := map[Verdict]int{}
			for _, v := range c.want {
				want[v]++
			}
			for _, v := range Verdicts {
				if (found[v] > 0) != (want[v] > 0) {
					t.Errorf("found %+v, want %v", Check(h), c.want)
					break
				}
			}
		})
	}
}
