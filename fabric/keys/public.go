package keys

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// algorithm is the first word of a public key line.
const algorithm = "ed25519"

// publicText is strict, so that a key has one spelling.
var publicText = base64.StdEncoding.Strict()

// PublicLine is a public key as a line of a trust file, "ed25519 BASE64 host",
// with its line break: what `bridged keys show` prints.
func PublicLine(host string, pub ed25519.PublicKey) string {
	return algorithm + " " + publicText.EncodeToString(pub) + " " + host + "\n"
}

// entry is one key line of a trust file.
type entry struct {
	pub   ed25519.PublicKey
	host  string    // "" if the line doesn't say
	since time.Time // zero if it doesn't say
}

// sinceMark begins the comment of a line that says since when it is there.
const sinceMark = "since "

// parsePublic reads a trust file: one key a line, in the form of PublicLine,
// where the host may be left out. Blank lines, and whatever follows a #, mean
// nothing. A bad line is an error and doesn't hide the good ones; a file
// without any key is an error too.
func parsePublic(path string, text []byte) (entries []entry, problems []error) {
	for i, line := range strings.Split(string(text), "\n") {
		line, comment, _ := strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		e, why := parseLine(words)
		if why != "" {
			problems = append(problems, fault.New(fault.BadRequest,
				"line %d of %s %s; write what `bridged keys show` prints on that host", i+1, path, why))
			continue
		}
		if text, ok := strings.CutPrefix(strings.TrimSpace(comment), sinceMark); ok {
			e.since, _ = time.Parse(time.RFC3339, text) // a comment can say anything
		}
		entries = append(entries, e)
	}
	if len(entries)+len(problems) == 0 {
		problems = append(problems, fault.New(fault.BadRequest,
			"%s holds no key; write what `bridged keys show` prints on that host, or remove the file", path))
	}
	return entries, problems
}

func parseLine(words []string) (e entry, why string) {
	if words[0] != algorithm || len(words) < 2 || len(words) > 3 {
		return e, `is not "ed25519 BASE64 host"`
	}
	pub, err := publicText.DecodeString(words[1])
	if err != nil || len(pub) != ed25519.PublicKeySize {
		return e, "holds no public key of 32 bytes in base64"
	}
	if weak[hex.EncodeToString(pub)] {
		return e, "holds a key under which anybody can sign"
	}
	if len(words) == 3 {
		e.host = words[2]
		if !envelope.ValidHost(e.host) {
			return e, "names something that is no host id (put # before a comment)"
		}
	}
	e.pub = pub
	return e, ""
}

// weak are the points of small order on the curve (RFC 7748 §7 warns of them):
// for these, signatures can be made without any private key. All zeros, which
// a broken script may well write, is one of them.
var weak = map[string]bool{
	"0100000000000000000000000000000000000000000000000000000000000000": true,
	"0100000000000000000000000000000000000000000000000000000000000080": true,
	"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f": true,
	"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff": true,
	"0000000000000000000000000000000000000000000000000000000000000000": true,
	"0000000000000000000000000000000000000000000000000000000000000080": true,
	"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05": true,
	"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85": true,
	"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a": true,
	"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa": true,
	"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f": true,
	"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff": true,
	"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f": true,
	"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff": true,
}
