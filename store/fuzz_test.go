package store

import (
	"encoding/json"
	"testing"

	"fleetd/fault"
)

// Fails when a record makes its reader panic, or an error says something else
// than that the record cannot be read.
func FuzzRecords(f *testing.F) {
	body, err := encodeBody(Brief{MsgID: "m"}, []byte("text"))
	if err != nil {
		f.Fatal(err)
	}
	js, err := json.Marshal(Held{MsgID: "m"})
	if err != nil {
		f.Fatal(err)
	}
	key := make([]byte, eventKeyLen)
	f.Add(key, body)
	f.Add(key, encodeSeen(Seen{Outcome: "injected", Host: "hosta", Reason: "x"}))
	f.Add(key, encodeEvent(Event{Step: "s", MsgID: "m"}))
	f.Add(key, append(append([]byte{recordVersion}, make([]byte, heldHead)...), js...))
	f.Add(key, append([]byte{recordVersion}, js...))
	f.Add(key, localCount{1, 2}.encode())
	f.Add([]byte(nil), []byte(nil))
	f.Fuzz(func(t *testing.T, k, v []byte) {
		var spawn Spawn
		var entity Entity
		errs := map[string]error{"spawn": decode("b", v, &spawn), "entity": decode("b", v, &entity)}
		_, errs["brief"] = decodeBrief(v)
		_, errs["held"] = decodeHeld(v)
		_, errs["count"] = decodeCount(v)
		_, errs["key"] = decodeKey(v)
		_, errs["intent"] = decodeIntent(v)
		seen, err := decodeSeen(v)
		errs["seen"] = err
		event, err := decodeEvent(k, v)
		errs["event"] = err
		for what, err := range errs {
			if err != nil && !fault.Is(err, fault.StoreUnavailable) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if errs["seen"] == nil {
			if again, err := decodeSeen(encodeSeen(seen)); err != nil || again != seen {
				t.Errorf("seen %+v is read back as %+v, %v", seen, again, err)
			}
		}
		if errs["event"] == nil {
			if again, err := decodeEvent(k, encodeEvent(event)); err != nil || again != event {
				t.Errorf("event %+v is read back as %+v, %v", event, again, err)
			}
		}
	})
}
