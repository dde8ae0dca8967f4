package roster

import "testing"

// An agent gives an address back as its pane shows it. Fails when a full-width
// at sign is not taken for a plain one.
func TestResolveTakesAFullWidthAtSign(t *testing.T) {
	r, err := New(Config{Host: "hosta", Boot: 1})
	if err != nil {
		t.Fatal(err)
	}
	const gid = "0197b1c2-7a00-7000-8000-00000000000a"
	if err := r.SetLocal(Entity{GID: gid, Name: "alice", Kind: "main"}); err != nil {
		t.Fatal(err)
	}
	got, err := r.Resolve("alice＠hosta")
	if err != nil || got.GID != gid {
		t.Fatalf("alice＠hosta resolves to %+v, %v", got, err)
	}
}
