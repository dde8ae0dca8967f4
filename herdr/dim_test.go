package herdr

import "testing"

// Fault: a colour is taken for the attribute dim, or dim for a colour.
func TestDimAttribute(t *testing.T) {
	k := kindOf("claude")
	for sgr, dim := range map[string]bool{
		"2": true, "0;2": true, "38;5;7;2": true, "38;2;1;1;1;2": true, "4:3;2": true, "7": true, "2;1": true,
		"": false, "0": false, "1": false, "38;5;2": false, "48;2;2;2;2": false, "38:2::2:2:2": false, "4:2": false, "2;22": false, "2;0": false, "7;27": false,
	} {
		row := "❯" + nbsp + "\x1b[" + sgr + "mwords of it\x1b[0m"
		if got := k.dimComposer(rule40 + "\n" + row + "\n" + rule40 + "\n"); got != dim {
			t.Errorf("SGR %q: dim is %t", sgr, got)
		}
	}
	if k.dimComposer("$ ") || k.dimComposer(rule40+"\n!"+nbsp+"\x1b[2mwords\n"+rule40) {
		t.Error("no composer, or a shell's, counts as dim")
	}
}
