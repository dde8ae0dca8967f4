package fleet

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed newer/envelope.go.txt
var newerEnvelope string

//go:embed newer/outbox.go.txt
var newerOutbox string

// newer are the files of today's source that the next minor version has
// otherwise: what is added, or what is written in the place of a text.
var newer = []struct{ file, text, old, new string }{
	{file: "fabric/envelope/newer.go", text: newerEnvelope},
	{file: "fabric/envelope/envelope.go", old: `const Version = "1"`, new: `const Version = "1.1"`},
	{file: "outbox/newer.go", text: newerOutbox},
	{file: "outbox/publish.go", old: "signed := *env", new: "signed := o.newer(ctx, lane, env)"},
}

// Newer builds bridged as a later minor version may be, once per process: its
// envelope has a signed header and a kind more, and it sends both. It is
// today's source with the files of newer laid over it.
func (f *Fleet) Newer(ctx context.Context) (binary string, err error) {
	built.Lock()
	defer built.Unlock()
	if built.newer == "" {
		built.newer, err = buildNewer(ctx, built.dir, built.tags)
	}
	return built.newer, err
}

func buildNewer(ctx context.Context, dir, tags string) (string, error) {
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	root := filepath.Dir(strings.TrimSpace(string(mod)))
	over := map[string]string{}
	for i, n := range newer {
		path, text := filepath.Join(root, n.file), n.text
		if n.old != "" {
			was, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			if strings.Count(string(was), n.old) != 1 {
				return "", fmt.Errorf("%s does not have %q once; the newer version has to be written anew", n.file, n.old)
			}
			text = strings.Replace(string(was), n.old, n.new, 1)
		}
		over[path] = filepath.Join(dir, fmt.Sprintf("newer-%d.go", i))
		if err := os.WriteFile(over[path], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": over})
	overlay, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "bridged-newer")
	if err := errors.Join(err, os.WriteFile(overlay, list, 0o600)); err != nil {
		return "", err
	}
	args := append([]string{"build"}, buildFlags...)
	args = append(args, "-tags", tags, "-overlay", overlay, "-o", binary, "fleetd/cmd/bridged")
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the newer version: %w\n%s", err, out)
	}
	return binary, nil
}

// Use has the daemon and the commands of h be those of another binary, from
// the next start on.
func (h *Host) Use(binary string) { h.binary = binary }
