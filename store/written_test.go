package store

import (
	"encoding/json"
	"fmt"
	"testing"
)

// What is on disk was written by this version or an earlier one, and is read
// by the next. Fails when a field of a record gets another name or form, or
// when what holds a word is written as something else than that word.
func TestRecordsAreWrittenAsEver(t *testing.T) {
	body := func(r any) []byte {
		v, err := encodeBody(r, []byte("body"))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	plain := func(r any) []byte {
		v, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	intent, err := encodeIntent(Intent{
		MsgID: "m", TraceID: "t", Kind: "SEND", From: "f", To: "g", ToHost: "h", ToName: "n", ToKind: "worker", TS: 1, ExpiresAt: 2,
		State: "ended", Outcome: "verdict", OutcomeReason: "IN_DOUBT", Seq: 3, EndedAt: 4, Recipients: []Recipient{{GID: "g", Host: "h", Name: "n"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		got  []byte
		want string
	}{
		"intent": {intent,
			"\x01\x01\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x04" + `{"MsgID":"m","TraceID":"t","Kind":"SEND","From":"f","To":"g","ToHost":"h","ToName":"n","ToKind":"worker","TS":1,"ExpiresAt":2,"State":"ended","Outcome":"verdict","OutcomeReason":"IN_DOUBT","Seq":3,"Recipients":[{"GID":"g","Host":"h","Name":"n"}],"EndedAt":4}`},
		"seen": {encodeSeen(Seen{Outcome: "failed", Reason: "EXPIRED", BodyHash: [32]byte{31: 5}, Boot: 6, Host: "h"}),
			"\x01\x00\x00\x00\x00\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x05\x06\x01failedhEXPIRED"},
		"brief": {body(Brief{GID: "g", Seq: 1, MsgID: "m", TraceID: "t", Sender: "s", SenderHost: "h", SenderName: "n", Kind: "SEND", State: "in_doubt"}),
			"\x01\x00\x00\x00\xbd" + `{"GID":"g","Seq":1,"MsgID":"m","TraceID":"t","Sender":"s","SenderHost":"h","SenderName":"n","Kind":"SEND","Hops":0,"TS":0,"ExpiresAt":0,"At":0,"State":"in_doubt","Boot":0,"Announced":false}` + "body"},
		"held": {body(Held{GID: "g", Seq: 1, MsgID: "m", TraceID: "t", Kind: "FAILED", From: "f", FromHost: "h", Reason: "EXPIRED", Local: true}),
			"\x01\x00\x00\x00\xd9" + `{"GID":"g","Seq":1,"MsgID":"m","TraceID":"t","Kind":"FAILED","From":"f","FromHost":"h","InReplyTo":"","Reason":"EXPIRED","TurnID":"","Hops":0,"TS":0,"ExpiresAt":0,"At":0,"Local":true,"Offered":false,"Size":0,"Cost":0}` + "body"},
		"entity": {plain(Entity{GID: "g", Kind: "main", Name: "n", Groups: []string{"a"}, State: "stopping"}),
			`{"GID":"g","Kind":"main","Name":"n","Groups":["a"],"Pane":"","Terminal":"","AgentKind":"","Leader":"","State":"stopping","Launched":false,"KeepPane":false,"CreatedAt":0,"GoneAt":0}`},
		"home": {plain(Home{GID: "g", Host: "h", Name: "n", Kind: "orchestrator"}),
			`{"GID":"g","Host":"h","Name":"n","Kind":"orchestrator","Groups":null,"LastSign":0,"Gone":false}`},
		"spawn": {plain(Spawn{SpawnID: "g", State: "launching", Boot: 1, Host: "h", Code: "SPAWN_FAILED", Detail: "NEVER_READY: BLOCKED"}),
			`{"SpawnID":"g","State":"launching","Boot":1,"From":"","FromHost":"","Host":"h","Profile":"","Name":"","Groups":null,"TraceID":"","Code":"SPAWN_FAILED","Detail":"NEVER_READY: BLOCKED","At":0,"Key":"","Task":"","TaskID":"","ExpiresAt":0}`},
	} {
		if string(c.got) != c.want {
			t.Errorf("%s is written as\n%q, not as\n%q", name, c.got, c.want)
		}
	}
}

// Fails when a word that stands in records of earlier versions is written anew.
func TestWordsInRecordsStay(t *testing.T) {
	for got, want := range map[string]string{
		fmt.Sprint([]Outcome{Waiting, Injecting, Injected, Drained, Failed}):                                              "[waiting injecting injected drained failed]",
		fmt.Sprint([]IntentState{IntentIntended, IntentInDoubt, IntentAccepted, IntentDeferred, IntentEnded}):             "[intended in_doubt accepted deferred ended]",
		fmt.Sprint([]End{EndAccepted, EndRefused, EndInjected, EndReplied, EndAbandoned, EndFailed, EndVerdict, EndDead}): "[accepted refused injected replied abandoned failed verdict dead]",
		fmt.Sprint([]EntityKind{Worker, Main, Orchestrator}):                                                              "[worker main orchestrator]",
		fmt.Sprint([]EntityState{EntityLaunching, EntityLive, EntityStopping, EntityGone}):                                "[launching live stopping gone]",
	} {
		if got != want {
			t.Errorf("the words are %s, not %s", got, want)
		}
	}
}
