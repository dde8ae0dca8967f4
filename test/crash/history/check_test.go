package history

import (
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// at is n seconds into the run.
func at(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }

// good is a brief that was injected and answered, and one into a main's inbox.
func good() History {
	return History{
		Sends: []Send{
			{
				Case: 1, Token: "tok-1", From: "m@a", To: "w@b", Worker: true, MsgIDs: []string{"id-1"}, Stored: true,
				Calls: []Call{{Began: at(1), Ended: at(4), State: "injected"}},
			},
			{
				Case: 2, Token: "tok-2", From: "m@a", To: "n@b", MsgIDs: []string{"id-2"}, Stored: true,
				Calls: []Call{{Began: at(1), Ended: at(2), State: "queued"}},
			},
		},
		Pastes:  []Paste{{At: at(3), Worker: "w@b", Text: "brief tok-1"}},
		Prompts: []Prompt{{at(3), "w@b", "brief tok-1"}},
		Answers: []Answer{{at(5), "w@b", "id-1", false, ""}},
		Shown: []Shown{
			{At: at(6), Reader: "m@a", MsgID: "id-3", Kind: "REPLY", InReplyTo: "id-1", Content: "brief tok-1"},
			{At: at(3), Reader: "n@b", MsgID: "id-2", Kind: "SEND", Content: "mail tok-2"},
		},
	}
}

func report(kind, reason string, t time.Time) Shown {
	return Shown{At: t, Reader: "m@a", MsgID: kind + reason, Kind: kind, InReplyTo: "id-1", Reason: reason}
}

// asked has the worker ask about the brief, and its sender answer.
func asked(h *History) {
	h.Questions = []Question{{Began: at(3), Ended: at(20), Worker: "w@b", Brief: "id-1", Answer: "left-1 tok-1"}}
	h.Shown = append(h.Shown, Shown{At: at(4), Reader: "m@a", MsgID: "id-5", Kind: "ASK", InReplyTo: "id-1", TurnID: "turn-1"})
	h.Told = []Told{{Call: Call{Began: at(5), Ended: at(6), State: "injected"}, By: "m@a", Turn: "turn-1", Token: "left-1 tok-1"}}
}

// tooLate has the answer come too late, though its asker waits long.
func tooLate(h *History) {
	asked(h)
	h.Told[0].State, h.Told[0].Code = "", "TOO_LATE"
	h.Questions[0].Answer, h.Questions[0].Error = "", "EXPIRED: …"
}

// nothing takes away all that became of the brief.
func nothing(h *History) {
	h.Pastes, h.Prompts, h.Answers, h.Shown = nil, nil, nil, h.Shown[1:]
}

// failed has the brief end so, instead of being injected.
func failed(h *History, kind, reason string) {
	nothing(h)
	h.Sends[0].Calls[0].State = "deferred"
	h.Shown = append(h.Shown, report(kind, reason, at(7)))
}

// wants checks h and demands these verdicts, in their order.
func wants(t *testing.T, h History, want []Verdict) {
	t.Helper()
	found := Check(h)
	ok := len(found) == len(want)
	for i := range found {
		ok = ok && found[i].Verdict == want[i]
	}
	if !ok {
		t.Errorf("found %+v, want %v", found, want)
	}
}

// Each fails when its verdict is not found, or another one as well, or
// something is held against a history that kept the promise.
func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(h *History)
		want []Verdict
	}{
		{"all is well", func(*History) {}, nil},

		// The brief did not arrive.
		{"a brief that is said to be injected vanishes", func(h *History) { nothing(h) }, []Verdict{Lost, Untrue}},
		{"a deferred brief vanishes", func(h *History) { nothing(h); h.Sends[0].Calls[0].State = "deferred" }, []Verdict{Lost}},
		{"an accepted brief is reported", func(h *History) {
			nothing(h)
			h.Sends[0].Calls[0].State = "deferred"
			h.Shown = append(h.Shown, report("FAILED", "EXPIRED", at(90)))
		}, nil},
		{"a brief in doubt gets no last word", func(h *History) {
			nothing(h)
			h.Sends[0].Calls[0] = Call{Began: at(1), Ended: at(2), Code: "IN_DOUBT"}
		}, []Verdict{Unreported}},
		{"a brief that only the store knows gets no last word", func(h *History) { nothing(h); h.Sends[0].Calls[0].State = "" }, []Verdict{Unreported}},
		{"a brief was never accepted", func(h *History) { nothing(h); h.Sends[0].Calls[0].State, h.Sends[0].Stored = "", false }, nil},
		{"a brief was refused", func(h *History) {
			nothing(h)
			h.Sends[0].Calls[0] = Call{Began: at(1), Ended: at(2), Code: "BROKER_DOWN"}
		}, nil},
		{"a brief was refused once and accepted once", func(h *History) {
			nothing(h)
			h.Sends[0].Calls = []Call{{Began: at(1), Ended: at(2), Code: "BROKER_DOWN"}, {Began: at(3), Ended: at(4), Code: "UNCONFIRMED"}}
		}, []Verdict{Unreported}},
		{"the call itself tells the end", func(h *History) {
			nothing(h)
			h.Sends[0].Calls[0] = Call{Began: at(1), Ended: at(9), Code: "EXPIRED", Report: true}
		}, nil},

		// What is on no record.
		{"a brief that is not on record is given to a worker", func(h *History) { h.Sends[0].Forgot = true }, []Verdict{Lost}},
		{"a brief that is not on record is given to nobody", func(h *History) { failed(h, "FAILED", "EXPIRED"); h.Sends[0].Forgot = true }, nil},
		{"mail that is not on record was shown", func(h *History) { h.Shown[1].Forgot = true }, []Verdict{Lost}},
		{"a message is on no record and on no broker", func(h *History) { h.Astray = []Astray{{1, "b"}} }, []Verdict{Lost}},

		// It arrived, and its sender knows less.
		{"an injected brief stays in doubt", func(h *History) {
			h.Sends[0].Calls[0] = Call{Began: at(1), Ended: at(2), Code: "IN_DOUBT"}
			h.Answers, h.Shown = nil, h.Shown[1:]
		}, []Verdict{Unreported}},
		{"an injected brief stays deferred", func(h *History) {
			h.Sends[0].Calls[0].State = "deferred"
			h.Answers, h.Shown = nil, h.Shown[1:]
		}, []Verdict{Unreported}},
		{"a deferred brief is asked about", func(h *History) {
			h.Sends[0].Calls[0].State = "deferred"
			h.Answers, h.Shown = nil, h.Shown[1:]
			asked(h)
		}, nil},
		{"a call broke and its brief was injected without a word", func(h *History) {
			h.Sends[0].Calls[0].State = ""
			h.Answers, h.Shown = nil, h.Shown[1:]
		}, []Verdict{Unreported}},
		{"a call broke and the answer tells", func(h *History) { h.Sends[0].Calls[0].State = "" }, nil},
		{"a report in doubt of what was injected", func(h *History) {
			h.Shown = append(h.Shown, report("FAILED", "IN_DOUBT", at(7)))
			h.Kills = []Kill{{at(4), "b"}}
		}, nil},
		{"a brief was pasted and never submitted", func(h *History) {
			h.Prompts, h.Answers, h.Shown = nil, nil, h.Shown[1:]
			h.Sends[0].Calls[0].State = "deferred"
		}, []Verdict{Unreported}},
		{"the same, and it is told", func(h *History) {
			h.Prompts, h.Answers, h.Shown = nil, nil, h.Shown[1:]
			h.Sends[0].Calls[0].State = "deferred"
			h.Shown = append(h.Shown, report("FAILED", "IN_DOUBT", at(7)))
			h.Faults = []Fault{{At: at(2), Worker: "w@b"}}
		}, nil},

		// One last word.
		{"the end of a brief is told twice", func(h *History) {
			failed(h, "FAILED", "EXPIRED")
			m := report("FAILED", "EXPIRED", at(9))
			m.MsgID = "other"
			h.Shown = append(h.Shown, m)
		}, []Verdict{Doubled}},
		{"two ends of a brief are told", func(h *History) {
			failed(h, "FAILED", "PANE_GONE")
			h.Shown = append(h.Shown, report("FAILED", "EXPIRED", at(9)))
		}, []Verdict{Doubled}},
		{"its gateway concluded an end, and the recipient's names the true one", func(h *History) {
			failed(h, "FAILED", "EXPIRED")
			h.Shown = append(h.Shown, report("FAILED", "PANE_GONE", at(9)))
		}, nil},
		{"a brief is told as injected twice", func(h *History) {
			m := report("INJECTED", "", at(9))
			m.MsgID = "other"
			h.Shown = append(h.Shown, report("INJECTED", "", at(7)), m)
		}, []Verdict{Doubled}},
		{"a brief in doubt is cleared up", func(h *History) {
			failed(h, "FAILED", "IN_DOUBT")
			h.Faults = []Fault{{At: at(2)}}
			h.Shown = append(h.Shown, report("FAILED", "EXPIRED", at(9)))
		}, nil},
		{"a brief is in doubt twice", func(h *History) {
			failed(h, "FAILED", "IN_DOUBT")
			h.Faults = []Fault{{At: at(2)}}
			m := report("FAILED", "IN_DOUBT", at(9))
			m.MsgID = "other"
			h.Shown = append(h.Shown, m)
		}, []Verdict{Doubled}},
		{"what failed is abandoned", func(h *History) {
			failed(h, "FAILED", "PANE_GONE")
			h.Shown = append(h.Shown, report("ABANDONED", "", at(9)))
		}, nil},
		{"what is abandoned failed as well", func(h *History) {
			failed(h, "ABANDONED", "")
			h.Shown = append(h.Shown, report("FAILED", "PANE_GONE", at(9)))
		}, []Verdict{Doubled}},
		{"a brief is abandoned twice", func(h *History) {
			failed(h, "ABANDONED", "PANE_GONE")
			m := report("ABANDONED", "PANE_GONE", at(9))
			m.MsgID = "other"
			h.Shown = append(h.Shown, m)
		}, []Verdict{Doubled}},
		{"an end is shown again after a kill", func(h *History) {
			failed(h, "FAILED", "EXPIRED")
			m := report("FAILED", "EXPIRED", at(9))
			m.Redelivered = true
			h.Shown, h.Kills = append(h.Shown, m), []Kill{{at(7), "a"}}
		}, nil},

		// In doubt.
		{"a brief is in doubt, and nothing was broken", func(h *History) { failed(h, "FAILED", "IN_DOUBT") }, []Verdict{Untrue}},
		{"the same, and it was submitted at once", func(h *History) {
			h.Answers, h.Shown = nil, append(h.Shown[1:], report("FAILED", "IN_DOUBT", at(9)))
		}, []Verdict{Untrue}},
		{"the same, and its pane was slow", func(h *History) {
			h.Prompts, h.Answers, h.Shown = nil, nil, append(h.Shown[1:], report("FAILED", "IN_DOUBT", at(9)))
			h.Sends[0].Calls[0].State = "deferred"
		}, nil},
		{"the same, and all panes are slow", func(h *History) {
			h.Prompts, h.Answers, h.Shown = nil, nil, append(h.Shown[1:], report("FAILED", "IN_DOUBT", at(9)))
			h.Sends[0].Calls[0].State = "deferred"
			other, m := h.Sends[0], report("FAILED", "IN_DOUBT", at(9))
			other.Token, other.MsgIDs, m.MsgID, m.InReplyTo = "tok-3", []string{"id-7"}, "other", "id-7"
			h.Sends, h.Shown = append(h.Sends, other), append(h.Shown, m)
			h.Pastes = append(h.Pastes, Paste{At: at(4), Worker: "w@b", Text: "brief tok-3"})
		}, []Verdict{Untrue, Untrue}},
		{"a call says so", func(h *History) {
			nothing(h)
			h.Sends[0].Calls[0] = Call{Began: at(1), Ended: at(9), Code: "IN_DOUBT", Report: true}
		}, []Verdict{Untrue}},
		{"a brief is in doubt, and its link was cut", func(h *History) {
			failed(h, "FAILED", "IN_DOUBT")
			h.Faults = []Fault{{At: at(2), Host: "b"}}
		}, nil},
		{"a brief is in doubt, and another one's link was cut", func(h *History) {
			failed(h, "FAILED", "IN_DOUBT")
			h.Kills, h.Faults = []Kill{{at(2), "c"}}, []Fault{{At: at(2), Host: "c"}, {At: at(2), Worker: "v@b"}}
		}, []Verdict{Untrue}},
		{"a task is in doubt whose agent was stopped", func(h *History) {
			failed(h, "FAILED", "IN_DOUBT")
			h.Spawns = []Spawn{{Case: 1, Token: "tok-1", From: "m@a", Host: "b", GIDs: []string{"g-1"}}}
			h.Stops = []Stop{{GID: "g-1", From: "m@a", Calls: []Call{{Began: at(5), Ended: at(6), State: "stopped"}}}}
		}, nil},
		{"a brief is in doubt, and its link was cut before and after", func(h *History) {
			failed(h, "FAILED", "IN_DOUBT")
			h.Faults = []Fault{{At: at(-30), Host: "b"}, {At: at(9), Host: "b"}}
		}, []Verdict{Untrue}},
		{"a brief that stays on its host is in doubt by the broker's fault", func(h *History) {
			failed(h, "FAILED", "IN_DOUBT")
			h.Sends[0].To, h.Faults = "w@a", []Fault{{At: at(2)}, {At: at(2), Host: "a"}}
		}, []Verdict{Untrue}},
		{"a brief that stays on its host is in doubt by a kill", func(h *History) {
			failed(h, "FAILED", "IN_DOUBT")
			h.Sends[0].To, h.Kills = "w@a", []Kill{{at(2), "a"}}
		}, nil},

		// To somebody else.
		{"mail is shown to another main", func(h *History) { h.Shown[1].Reader = "o@b" }, []Verdict{Lost, Untrue}},
		{"mail is shown to another main too", func(h *History) {
			m := h.Shown[1]
			m.Reader = "o@b"
			h.Shown = append(h.Shown, m)
		}, []Verdict{Doubled, Untrue}},
		{"a brief is shown to a main", func(h *History) {
			h.Shown = append(h.Shown, Shown{At: at(4), Reader: "n@b", MsgID: "id-1", Kind: "SEND", Content: "brief tok-1"})
		}, []Verdict{Untrue}},
		{"a brief is pasted into another pane", func(h *History) { h.Pastes[0].Worker, h.Prompts = "v@b", nil }, []Verdict{Lost, Untrue, Untrue, Untrue}},
		{"a brief is pasted into another pane too", func(h *History) { h.Pastes = append(h.Pastes, Paste{At: at(3), Worker: "v@b", Text: "brief tok-1"}) }, []Verdict{Untrue}},
		{"a model is given another one's brief", func(h *History) { h.Prompts = append(h.Prompts, Prompt{at(3), "v@b", "brief tok-1"}) }, []Verdict{Untrue}},
		{"mail is pasted into a pane", func(h *History) { h.Pastes = append(h.Pastes, Paste{At: at(3), Worker: "w@b", Text: "mail tok-2"}) }, []Verdict{Untrue}},

		// Mail.
		{"accepted mail vanishes", func(h *History) { h.Shown = h.Shown[:1] }, []Verdict{Lost}},
		{"mail is shown twice", func(h *History) { m := h.Shown[1]; m.At = at(8); h.Shown = append(h.Shown, m) }, []Verdict{Doubled}},
		{"mail is shown again after a kill and says so", func(h *History) {
			m := h.Shown[1]
			m.At, m.Redelivered = at(8), true
			h.Shown = append(h.Shown, m)
			h.Kills = []Kill{{at(3), "b"}}
		}, nil},
		{"mail is shown again, long after a kill that may have taken the note of it", func(h *History) {
			m := h.Shown[1]
			m.At, m.Redelivered = at(1800), true
			h.Shown = append(h.Shown, m)
			h.Kills = []Kill{{at(3), "b"}}
		}, nil},
		{"mail is shown again after a kill long after it was shown", func(h *History) {
			m := h.Shown[1]
			m.At, m.Redelivered = at(1800), true
			h.Shown = append(h.Shown, m)
			h.Kills = []Kill{{at(1790), "b"}}
		}, []Verdict{Doubled}},
		{"mail is shown again, and its gateway was killed long before, or another one", func(h *History) {
			m := h.Shown[1]
			m.At, m.Redelivered = at(8), true
			h.Shown = append(h.Shown, m)
			h.Kills = []Kill{{at(-30), "b"}, {at(4), "a"}}
		}, []Verdict{Doubled}},
		{"an answer is given again to who asks again", func(h *History) {
			m := h.Shown[0]
			m.At, m.Redelivered, m.Asked = at(8), true, true
			h.Shown = append(h.Shown, m)
		}, nil},
		{"an answer is given again to who asks again, beside a poll that notes it later", func(h *History) {
			m := h.Shown[0] // at 6
			m.At, m.Redelivered, m.Asked = at(5), true, true
			h.Shown[0].Began = at(4)
			h.Shown = append(h.Shown, m)
		}, nil},
		{"an answer is given again to who asks again, and then as if it was new", func(h *History) {
			m := h.Shown[0]
			m.At, m.Redelivered, m.Asked = at(4), true, true
			h.Shown[0].Began = at(5)
			h.Shown = append(h.Shown, m)
		}, []Verdict{Doubled}},
		{"the mark is on the first one", func(h *History) {
			m := h.Shown[1]
			m.At, m.Redelivered = at(2), true
			h.Shown = append(h.Shown, m)
		}, []Verdict{Doubled}},
		{"mail is shown under two ids", func(h *History) {
			m := h.Shown[1]
			m.MsgID = "id-9"
			h.Sends[1].MsgIDs = append(h.Sends[1].MsgIDs, "id-9")
			h.Shown = append(h.Shown, m)
		}, []Verdict{Doubled}},
		{"a reply vanishes", func(h *History) { h.Shown = h.Shown[1:] }, []Verdict{Lost}},
		{"a reply in doubt vanishes", func(h *History) { h.Shown = h.Shown[1:]; h.Answers[0].Error = "IN_DOUBT: …" }, []Verdict{Lost}},
		{"a refused reply is not expected", func(h *History) { h.Shown = h.Shown[1:]; h.Answers[0].Error = "BROKER_DOWN: …" }, nil},
		{"a reply under a key is shown under two ids", func(h *History) {
			h.Answers[0].Keyed = true
			m := h.Shown[0]
			m.At, m.MsgID = at(8), "id-4"
			h.Shown = append(h.Shown, m)
		}, []Verdict{Doubled}},
		{"a reply under a key was refused, and is shown", func(h *History) {
			h.Answers[0].Keyed, h.Answers[0].Error = true, "BROKER_DOWN: …"
		}, []Verdict{Untrue}},
		{"a reply is shown twice", func(h *History) { m := h.Shown[0]; m.At = at(8); h.Shown = append(h.Shown, m) }, []Verdict{Doubled}},

		// Twice in the pane.
		{"a brief is pasted twice", func(h *History) { h.Pastes = append(h.Pastes, Paste{At: at(5), Worker: "w@b", Text: "brief tok-1"}) }, []Verdict{Doubled}},
		{"a model gets a brief twice", func(h *History) { h.Prompts = append(h.Prompts, Prompt{at(5), "w@b", "brief tok-1"}) }, []Verdict{Doubled}},

		// What was said is not so.
		{"injected is said of what was never pasted", func(h *History) {
			nothing(h)
			h.Shown = append(h.Shown, report("FAILED", "IN_DOUBT", at(7)))
			h.Kills = []Kill{{at(5), "b"}}
		}, []Verdict{Untrue}},
		{"injected is said of what was never submitted", func(h *History) {
			h.Prompts, h.Answers, h.Shown = nil, nil, h.Shown[1:]
			h.Shown = append(h.Shown, report("FAILED", "IN_DOUBT", at(7)))
			h.Kills = []Kill{{at(5), "b"}}
		}, []Verdict{Untrue}},
		{"injected is said before it was submitted", func(h *History) { h.Prompts[0].At = at(5) }, []Verdict{Untrue}},
		{"a notice says injected of what was never submitted", func(h *History) {
			h.Prompts, h.Answers, h.Shown = nil, nil, h.Shown[1:]
			h.Sends[0].Calls[0].State = ""
			h.Shown = append(h.Shown, report("INJECTED", "", at(7)))
		}, []Verdict{Unreported, Untrue}},
		{"injected is said too early", func(h *History) { h.Sends[0].Calls[0].Ended = at(2) }, []Verdict{Untrue}},
		{"a notice says injected of what was never pasted", func(h *History) {
			nothing(h)
			h.Sends[0].Calls[0].State = ""
			h.Shown = append(h.Shown, report("INJECTED", "", at(7)), report("FAILED", "IN_DOUBT", at(8)))
			h.Kills = []Kill{{at(5), "b"}}
		}, []Verdict{Untrue}},
		{"failed is said of what was injected", func(h *History) { h.Shown = append(h.Shown, report("FAILED", "EXPIRED", at(7))) }, []Verdict{Untrue}},
		{"a call says failed of what was injected", func(h *History) {
			h.Sends[0].Calls[0] = Call{Began: at(1), Ended: at(9), Code: "EXPIRED", Report: true}
		}, []Verdict{Untrue}},
		{"nothing was sent, and it arrived", func(h *History) {
			h.Sends[0].Calls[0] = Call{Began: at(1), Ended: at(2), Code: "BROKER_DOWN"}
		}, []Verdict{Untrue}},
		{"nothing was sent, and the next call sent it", func(h *History) {
			h.Sends[0].Calls = []Call{{Began: at(1), Ended: at(1), Code: "BROKER_DOWN"}, {Began: at(2), Ended: at(4), State: "injected"}}
		}, nil},
		{"an answer that nobody gave", func(h *History) { h.Prompts, h.Answers = nil, nil }, []Verdict{Unreported, Untrue, Untrue}},
		{"an answer to another brief", func(h *History) { h.Shown[0].Content = "brief tok-0" }, []Verdict{Untrue}},
		{"a report to somebody else", func(h *History) {
			m := report("FAILED", "IN_DOUBT", at(7))
			m.Reader = "x@a"
			h.Shown = append(h.Shown, m)
		}, []Verdict{Untrue}},
		{"mail that nobody sent", func(h *History) {
			h.Shown = append(h.Shown, Shown{At: at(7), Reader: "m@a", MsgID: "id-8", Kind: "SEND", Content: "hello"})
		}, []Verdict{Untrue}},

		// Questions.
		{"an answer is told as given and never arrived", func(h *History) { asked(h); h.Questions[0].Answer = "left-2 tok-1" }, []Verdict{Untrue, Untrue}},
		{"a question is answered", asked, nil},
		{"the answerer's call broke", func(h *History) { asked(h); h.Told[0].State = "" }, nil},
		{"an answer in doubt arrived", func(h *History) { asked(h); h.Told[0].State, h.Told[0].Code = "", "UNCONFIRMED" }, nil},
		{"an answer in doubt did not arrive", func(h *History) {
			asked(h)
			h.Told[0].State, h.Told[0].Code = "", "UNCONFIRMED"
			h.Questions[0].Answer, h.Questions[0].Error = "", "EXPIRED: …"
		}, nil},
		{"too late is said of an answer that arrived", func(h *History) { asked(h); h.Told[0].State, h.Told[0].Code = "", "TOO_LATE" }, []Verdict{Untrue}},
		{"not sent is said of an answer that arrived", func(h *History) { asked(h); h.Told[0].State, h.Told[0].Code = "", "BROKER_DOWN" }, []Verdict{Untrue}},
		{"too late is said while the asker waits", tooLate, []Verdict{Untrue}},
		{"too late is said after its gateway was killed", func(h *History) { tooLate(h); h.Kills = []Kill{{at(5), "b"}} }, nil},
		{"an answer meets two questions", func(h *History) {
			asked(h)
			h.Questions = append(h.Questions, h.Questions[0])
		}, []Verdict{Doubled}},
		{"an answer meets another question", func(h *History) { asked(h); h.Questions[0].Brief = "id-7" }, []Verdict{Untrue}},
		{"nobody was asked, and somebody was shown it", func(h *History) {
			asked(h)
			h.Told, h.Questions[0].Answer, h.Questions[0].Error = nil, "", "NO_WAITER: …"
		}, []Verdict{Untrue}},
		{"the same, and it asked again after a kill", func(h *History) {
			asked(h)
			h.Told, h.Questions[0].Answer, h.Questions[0].Error = nil, "", "NO_WAITER: …"
			h.Kills = []Kill{{at(5), "b"}}
		}, nil},
		{"a question never comes back", func(h *History) {
			asked(h)
			h.Told, h.Questions[0].Answer, h.Questions[0].Ended = nil, "", time.Time{}
		}, []Verdict{Unreported}},
		{"a question is put twice", func(h *History) {
			asked(h)
			m := h.Shown[2]
			m.Reader, m.At = "x@a", at(5)
			h.Shown = append(h.Shown, m)
		}, []Verdict{Doubled, Untrue}},

		// What is left.
		{"mail is left in an inbox", func(h *History) { h.Left = []Left{{Where: "inbox of n@b", MsgID: "id-2", What: "1 message"}} }, []Verdict{Unreported}},
		{"a dead letter of a reported brief", func(h *History) {
			nothing(h)
			h.Sends[0].Calls[0].State = "deferred"
			h.Shown = append(h.Shown, report("FAILED", "EXPIRED", at(90)))
			h.Left = []Left{{Where: "bridge.dlq", MsgID: "id-1", What: "SEND expired", Dead: true}}
		}, nil},
		{"a dead letter that nobody was told of", func(h *History) {
			nothing(h)
			h.Sends[0].Calls[0].State = "deferred"
			h.Left = []Left{{Where: "bridge.dlq", MsgID: "id-1", What: "SEND expired", Dead: true}}
		}, []Verdict{Lost, Unreported}},
		{"a dead reply", func(h *History) {
			h.Shown = h.Shown[1:]
			h.Left = []Left{{Where: "bridge.dlq", MsgID: "id-3", What: "REPLY rejected", Dead: true}} // about none
		}, []Verdict{Unreported, Lost}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := good()
			c.make(&h)
			wants(t, h, c.want)
		})
	}
}

// cast is a message to a worker and two mains, of which one is on the sender's
// host.
func cast() History {
	var h History
	for _, to := range []string{"w@b", "n@b", "o@a"} {
		h.Sends = append(h.Sends, Send{
			Case: 1, Token: "tok-1", From: "m@a", To: to, Worker: to == "w@b", Cast: true, MsgIDs: []string{"id-1"}, Stored: true,
			Calls: []Call{{Began: at(1), Ended: at(4), State: "queued"}},
		})
	}
	h.Sends[0].Calls[0].State = "injected"
	h.Pastes = []Paste{{At: at(3), Worker: "w@b", Text: "brief tok-1"}}
	h.Prompts = []Prompt{{at(3), "w@b", "brief tok-1"}}
	h.Answers = []Answer{{at(5), "w@b", "id-1", false, ""}}
	h.Shown = []Shown{
		{At: at(5), Reader: "n@b", MsgID: "id-1", Kind: "BROADCAST", From: "m@a", Content: "mail tok-1"},
		{At: at(5), Reader: "o@a", MsgID: "id-1", Kind: "BROADCAST", From: "m@a", Content: "mail tok-1"},
		{At: at(6), Reader: "m@a", MsgID: "id-3", Kind: "REPLY", From: "w@b", InReplyTo: "id-1", Content: "brief tok-1"},
	}
	return h
}

// Each fails when a part of a broadcast is held to what became of another one,
// or its verdict is not found.
func TestVerdictsOnBroadcasts(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(h *History)
		want []Verdict
	}{
		{"all is well", func(*History) {}, nil},
		{"one main never gets it", func(h *History) { h.Shown = h.Shown[1:] }, []Verdict{Lost}},
		{"one main never gets it, and that is told of another one", func(h *History) {
			m := report("FAILED", "EXPIRED", at(90))
			m.From = "o@a"
			h.Shown = append(h.Shown[1:], m)
		}, []Verdict{Lost, Untrue}},
		{"one main never gets it, and that is told", func(h *History) {
			m := report("FAILED", "EXPIRED", at(90))
			m.From = "n@b"
			h.Shown = append(h.Shown[1:], m)
		}, nil},
		{"a worker gets it twice", func(h *History) { h.Pastes = append(h.Pastes, Paste{At: at(7), Worker: "w@b", Text: "brief tok-1"}) }, []Verdict{Doubled}},
		{"a main is shown it twice", func(h *History) {
			m := h.Shown[0]
			m.At = at(8)
			h.Shown = append(h.Shown, m)
		}, []Verdict{Doubled}},
		{"somebody else is shown it", func(h *History) {
			m := h.Shown[0]
			m.Reader = "x@b"
			h.Shown = append(h.Shown, m)
		}, []Verdict{Untrue}},
		{"not sent is said of one that has it", func(h *History) { h.Sends[1].Calls[0].State, h.Sends[1].Calls[0].Code = "", "NOT_SENT" }, []Verdict{Untrue}},
		{"nothing was sent to one until its life was over", func(h *History) {
			h.Sends[1].Calls[0] = Call{Began: at(1), Ended: at(4), Code: "EXPIRED", NotSent: true}
			h.Shown = h.Shown[1:]
		}, nil},
		{"that is said of one that has it", func(h *History) {
			h.Sends[1].Calls[0] = Call{Began: at(1), Ended: at(4), Code: "EXPIRED", NotSent: true}
		}, []Verdict{Untrue}},
		{"the worker's answer vanishes", func(h *History) { h.Shown = h.Shown[:2] }, []Verdict{Lost}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := cast()
			c.make(&h)
			wants(t, h, c.want)
		})
	}
}
