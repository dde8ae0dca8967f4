package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"

	"fleetd/fault"
)

// maxFile bounds the configuration file, in bytes; a real one has a few
// hundred.
const maxFile = 1 << 20

// fileLayer reads the file that is named first: by the flag, by
// $BRIDGED_CONFIG, by default. Only the default one may be missing.
func fileLayer(flag string, env map[string]string, here place) (name string, l layer, found []problem, err error) {
	name, by := flag, "--config"
	if name == "" {
		name, by = env["BRIDGED_CONFIG"], "$BRIDGED_CONFIG"
	}
	optional := name == ""
	if optional {
		if here.home == "" {
			return "", newLayer(), nil, nil
		}
		name, by = defaultFile, ""
	}
	abs, says := here.path(name)
	if says != "" {
		return "", newLayer(), nil, fault.New(fault.BadRequest, "%s: %s", by, says)
	}
	name = abs.(string)
	data, err := readFile(name)
	if optional && errors.Is(err, fs.ErrNotExist) {
		return "", newLayer(), nil, nil
	}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return "", newLayer(), nil, f
	}
	if err != nil {
		if by != "" {
			by = " (named by " + by + ")"
		}
		return "", newLayer(), nil, fault.Wrap(err, fault.BadRequest, "the configuration file %s%s cannot be read; correct its name or its rights", name, by)
	}
	l, found = parseFile(name, data, here.home)
	return name, l, found, nil
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := checkOwn(f); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("it is longer than %d bytes", maxFile)
	}
	return data, nil
}

// checkOwn refuses a file that another account wrote or can write: it names the
// programs that are started, and whom to believe. What its group can write is
// warned of alone, for that is often nobody else.
func checkOwn(f *os.File) error {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	return checkOwner(f.Name(), owner(info), os.Geteuid(), info.Mode().Perm())
}

// checkOwner lets root read any user's file, as he goes to any user's daemon,
// and as a container's root does with what is mounted into it. Were he told to
// take it over, its owner's daemon would not start any more.
func checkOwner(name string, uid, euid int, mode fs.FileMode) error {
	if mode&0o002 != 0 {
		return fault.New(fault.NotAllowed, "%s can be changed by every user (mode %04o), and it names programs to start; look through it and run: chmod go-w %s", name, mode, name)
	}
	if uid != 0 && uid != euid && euid != 0 {
		return fault.New(fault.NotAllowed, "%s belongs to user %d, and it names programs to start as user %d; look through it and run: chown %d %s", name, uid, euid, euid, name)
	}
	return nil
}

// rootsRisk is what to warn root of where a file of user uid is read.
func rootsRisk(name string, uid, euid int) string {
	if euid != 0 || uid == 0 {
		return ""
	}
	return fmt.Sprintf("%s belongs to user %d, who decides with it what root starts; run the daemon as that user, or give root's a file of its own", name, uid)
}

// owner is the user id of whom a file belongs to; our own where the system does
// not tell.
func owner(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return os.Geteuid()
}

// parseFile reads one YAML document. Relative paths in it are relative to its
// own directory, so that they mean the same wherever the daemon is started.
func parseFile(name string, data []byte, home string) (layer, []problem) {
	l := newLayer()
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	doc := yaml.Node{}
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
		return l, nil
	} else if err != nil {
		return l, []problem{notYAML(name, err)}
	}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return l, []problem{{where: name, says: "holds more than one YAML document; write one"}}
	}
	w := walker{
		place:  place{home: home, dir: filepath.Dir(name)},
		origin: l.origin,
		locate: func(n *yaml.Node) string { return fmt.Sprintf("%s:%d:%d", name, n.Line, n.Column) },
	}
	if v, ok := w.value(doc.Content[0], schema, "").(map[string]any); ok {
		l.values = v
	}
	return l, w.found
}

var yamlLine = regexp.MustCompile(`^yaml: line (\d+): (.*)$`)

// notYAML moves the line that the library found to where lines stand.
func notYAML(name string, err error) problem {
	says := strings.TrimPrefix(err.Error(), "yaml: ")
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		name, says = name+":"+m[1], m[2]
	}
	return problem{where: name, says: "this is not YAML: " + says}
}
