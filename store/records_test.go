package store

import (
	"fmt"
	"reflect"
	"testing"

	"fleetd/fault"

	"github.com/google/go-cmp/cmp"
)

// fillIn sets every field of the struct at p to something that is not zero, so
// that a field which does not survive is seen, also one that comes later.
func fillIn(t *testing.T, p any) {
	t.Helper()
	v := reflect.ValueOf(p).Elem()
	for i := range v.NumField() {
		f := v.Field(i)
		if f.Kind() == reflect.String { // words have types of their own
			f.SetString(fmt.Sprintf("%s \x00 ü", v.Type().Field(i).Name))
			continue
		}
		switch f.Interface().(type) {
		case int, int64:
			f.SetInt(int64(i) + 1)
		case uint64:
			f.SetUint(uint64(i) + 1)
		case bool:
			f.SetBool(true)
		case []byte:
			f.SetBytes([]byte("\x00\xffbody"))
		case [32]byte:
			f.Set(reflect.ValueOf([32]byte{0: 1, 31: byte(i)}))
		case []string:
			f.Set(reflect.ValueOf([]string{"a", "b"}))
		case map[string]string:
			f.Set(reflect.ValueOf(map[string]string{"traceparent": "x"}))
		case []Recipient:
			var r Recipient
			fillIn(t, &r)
			f.Set(reflect.ValueOf([]Recipient{r}))
		default:
			t.Fatalf("no value for field %s of %s", v.Type().Field(i).Name, v.Type())
		}
	}
}

// same compares a lookup with what was put.
func same[T any](t *testing.T, want, got T, found bool, err error) {
	t.Helper()
	if err != nil || !found {
		t.Errorf("%T: found %v, error %v", want, found, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%T differs (-put +got):\n%s", want, diff)
	}
}

// one takes the single record out of a list.
func one[T any](all []T, err error) (T, bool, error) {
	if len(all) != 1 {
		var none T
		return none, false, err
	}
	return all[0], true, err
}

// Fails if a field of a record is lost on the way to the file and back after a
// restart, or a record lands under another's key.
func TestRecordsSurviveARestart(t *testing.T) {
	dir, gid, msg := privateDir(t), newID(), newID()
	entity, home, brief, held := Entity{}, Home{}, Brief{}, Held{}
	intent, seen, key, event := Intent{}, Seen{}, Key{}, Event{}
	for _, p := range []any{&entity, &home, &brief, &held, &intent, &seen, &key, &event} {
		fillIn(t, p)
	}
	entity.GID, home.GID, brief.GID, held.GID = gid, gid, gid, gid
	intent.MsgID, brief.MsgID, event.TraceID = msg, msg, traceA
	token := [32]byte{7}

	s := openAt(t, Options{Dir: dir})
	stop := start(t, s)
	s.Trace(event)
	write(t, s, func(tx *Tx) error {
		for _, err := range []error{
			tx.PutEntity(entity), tx.PutHome(home), tx.PutBrief(brief), tx.PutHeld(held), tx.PutIntent(intent),
			tx.PutSeen(5, msg, gid, seen), tx.PutKey(gid, "k", key), tx.PutToken(token, gid), tx.PutHostID("hosta"),
		} {
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkAndClose(t, s)

	view(t, openAt(t, Options{Dir: dir}), func(tx *Tx) error {
		check := func(t *testing.T) {
			t.Helper()
			e, ok, err := tx.Entity(gid)
			same(t, entity, e, ok, err)
			e, ok, err = one(tx.Entities())
			same(t, entity, e, ok, err)
			h, ok, err := tx.Home(gid)
			same(t, home, h, ok, err)
			h, ok, err = one(tx.Homes())
			same(t, home, h, ok, err)
			b, ok, err := tx.BriefByMsg(gid, msg)
			same(t, brief, b, ok, err)
			b, ok, err = one(tx.AllBriefs())
			same(t, brief, b, ok, err)
			m, ok, err := tx.HeldEntry(gid, held.Seq)
			same(t, held, m, ok, err)
			m, ok, err = one(tx.HeldIndex(gid))
			m.Body = held.Body
			same(t, held, m, ok, err)
			in, ok, err := tx.Intent(msg)
			same(t, intent, in, ok, err)
			in, ok, err = one(tx.OpenIntents())
			same(t, intent, in, ok, err)
			sn, ok, err := tx.SeenOf(5, msg, gid)
			same(t, seen, sn, ok, err)
			sn, ok, err = tx.FindSeen(msg, gid)
			same(t, seen, sn, ok, err)
			k, ok, err := tx.KeyOf(gid, "k")
			same(t, key, k, ok, err)
			ev, ok, err := one(tx.TraceOf(traceA))
			same(t, event, ev, ok, err)
			owner, ok, err := tx.TokenOwner(token)
			same(t, gid, owner, ok, err)
			host, err := tx.HostID()
			same(t, "hosta", host, true, err)
		}
		check(t)
		return nil
	})
}

// Fails if something is found in an empty store.
func TestAbsentRecordsAreNotFound(t *testing.T) {
	s := openAt(t, Options{Dir: privateDir(t)})
	gid := newID()
	view(t, s, func(tx *Tx) error {
		absent := func(what string, found bool, err error) {
			if found || err != nil {
				t.Errorf("%s: found %v, error %v", what, found, err)
			}
		}
		_, ok, err := tx.Entity(gid)
		absent("entity", ok, err)
		_, ok, err = tx.Home(gid)
		absent("home", ok, err)
		_, ok, err = tx.BriefByMsg(gid, gid)
		absent("brief", ok, err)
		_, ok, err = tx.HeldEntry(gid, 1)
		absent("held", ok, err)
		_, ok, err = tx.Intent(gid)
		absent("intent", ok, err)
		_, ok, err = tx.SeenOf(0, gid, gid)
		absent("seen", ok, err)
		_, ok, err = tx.FindSeen(gid, gid)
		absent("seen", ok, err)
		_, ok, err = tx.KeyOf(gid, "k")
		absent("key", ok, err)
		_, ok, err = tx.TokenOwner([32]byte{})
		absent("token", ok, err)
		all, err := tx.TraceOf(traceA)
		absent("trace", len(all) > 0, err)
		boot, err := tx.Boot()
		absent("boot", boot != 0, err)
		return nil
	})
}

// Fails if text that is no id becomes a key, where it would meet another's.
func TestKeysMustBeIDs(t *testing.T) {
	s := runningStore(t, Options{})
	good := newID()
	write(t, s, func(tx *Tx) error {
		for what, err := range map[string]error{
			"entity": tx.PutEntity(Entity{GID: "_gateway@hosta"}),
			"brief":  tx.PutBrief(Brief{}),
			"held":   tx.PutHeld(Held{GID: "{" + good[1:]}),
			"intent": tx.PutIntent(Intent{MsgID: "urn:uuid:" + good}),
			"seen":   tx.PutSeen(0, good, good+"x", Seen{}),
			"day":    tx.PutSeen(-1, good, good, Seen{}),
			"key":    tx.PutKey(good, "", Key{}),
			"token":  tx.PutToken([32]byte{}, "wQ:p2"),
		} {
			if !fault.Is(err, fault.BadRequest) {
				t.Errorf("%s: %v, want BAD_REQUEST", what, err)
			}
		}
		_, err := tx.TraceOf("ABCDEF6789abcdef0123456789abcdef")
		if !fault.Is(err, fault.BadRequest) {
			t.Errorf("trace: %v, want BAD_REQUEST", err)
		}
		return nil
	})
}

// Fails if a View can change the file.
func TestViewCannotWrite(t *testing.T) {
	s := openAt(t, Options{Dir: privateDir(t)})
	if err := s.View(putEntity(newID(), "x")); err == nil {
		t.Error("a view wrote")
	}
}
