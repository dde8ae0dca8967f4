package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// Fails when a file makes Load panic, is refused otherwise than with words
// about the file, or is taken with a value that nobody may give.
func FuzzFile(f *testing.F) {
	for _, text := range []string{
		"", "host: hosta\nbroker: {uri: 'amqps://u:p@b/', tls: {ca: x}}", "profiles: {a: {argv: [x], env: {A: b}, groups: [g], remote: true}}",
		"control: {allow: {hostb: [send, spawn]}}", "limits: {content_bytes: 1, max_ttl: 1h, per_pair: 0}", "listen: '[::1]:0'", "a: &a [*a]", "? {a: b}\n: c",
		"<<: {}", "host: !!binary aG9zdGE=", "- x", "\x00", "host: \"\\ud800\"",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		home := t.TempDir()
		file := filepath.Join(home, "c.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := Load(Source{File: file, Environ: []string{"HOME=" + home}, Hostname: "hosta", Dir: home})
		if err != nil {
			if !fault.Is(err, fault.BadRequest) || !strings.Contains(err.Error(), "c.yaml") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if !envelope.ValidHost(cfg.Host) || cfg.Limits.ContentBytes <= 0 || cfg.Limits.PerPair < 0 || !filepath.IsAbs(cfg.DataDir) {
			t.Errorf("%q is taken as %+v", text, cfg)
		}
		for host, verbs := range cfg.Control.Allow {
			for _, v := range verbs {
				if !envelope.ValidHost(host) || v != VerbSend && v != VerbSpawn && v != VerbStop {
					t.Errorf("%q lets %q do %q", text, host, v)
				}
			}
		}
	})
}
