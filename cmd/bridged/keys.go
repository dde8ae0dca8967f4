package main

import (
	"crypto/ed25519"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fleetd/cmd/bridged/config"
	"fleetd/fabric/keys"
	"fleetd/fault"
)

func (a *app) keysCmd() *cobra.Command {
	cmd := a.group(&cobra.Command{
		Use:     "keys",
		Short:   "Show this gateway's key, trust or revoke another's",
		Long:    `Gateways believe each other by keys. Each shows its own (keys show), and each is told whom to trust (keys trust); trust is needed both ways.`,
		GroupID: groupFleet,
	}, a.keysShowCmd(), a.keysTrustCmd(), a.keysRotateCmd(), a.keysRevokeCmd(), a.keysListCmd())
	config.AddFlags(cmd.PersistentFlags(), "host", "trust_dir")
	return cmd
}

// ownKey is this gateway's key, made now if there is none yet.
func (a *app) ownKey(cfg config.Config) (ed25519.PublicKey, error) {
	key, created, err := keys.LoadOrCreate(cfg.KeyPath(), a.Rand)
	if err != nil {
		return nil, err
	}
	if created {
		a.note("a new key was made: %s", cfg.KeyPath())
	}
	return key.Public().(ed25519.PublicKey), nil
}

func (a *app) keysShowCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Print the public key of this gateway, as others trust it",
		Long: `Print the public key of this gateway as one line, for a file that the other
hosts are given and that is named after this host, as in
  bridged keys show > hosta.pub
The fingerprint goes to standard error; compare it over another way than the
file took.`,
		Args: cobra.NoArgs,
		RunE: a.run(func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.config(cmd)
			if err != nil {
				return err
			}
			pub, err := a.ownKey(cfg)
			if err != nil {
				return err
			}
			line := keys.PublicLine(cfg.Host, pub)
			out := struct {
				Host        string `json:"host"`
				PublicKey   string `json:"public_key"`
				Fingerprint string `json:"fingerprint"`
			}{cfg.Host, strings.TrimSpace(line), keys.Fingerprint(pub)}
			return a.emit(out, func(w *printer) {
				a.note("fingerprint of %s: %s", cfg.Host, out.Fingerprint)
				w.text(line)
			})
		}),
	}
}

func (a *app) keysTrustCmd() *cobra.Command {
	var more bool
	cmd := &cobra.Command{
		Use:   "trust FILE",
		Short: "Trust the gateway whose public key is in FILE",
		Long: `Trust the gateway whose public key is in FILE, named HOST.pub (what "bridged keys
show" printed there). Compare the fingerprint that is printed with the one that was shown
there. A running daemon takes a new host up by itself.`,
		Args: cobra.ExactArgs(1),
		RunE: a.run(func(cmd *cobra.Command, pos []string) error {
			cfg, err := a.config(cmd)
			if err != nil {
				return err
			}
			host, prints, err := keys.Add(cfg.TrustDir, cfg.Host, pos[0], more, time.Now())
			if fault.Is(err, fault.BadRequest) { // the file is the wrong one
				return usageError{err}
			}
			if err != nil {
				return err
			}
			out := trusted{Host: host, Fingerprints: prints}
			return a.emit(out, func(w *printer) { printTrusted(w, []trusted{out}) })
		}),
	}
	cmd.Flags().BoolVar(&more, "beside", false, "trust it beside the keys that its host has already, while that host changes its key")
	return cmd
}

func (a *app) keysRotateCmd() *cobra.Command {
	var apply bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Change this gateway's key, in two steps so that no message is refused",
		Long: `Change the key of this gateway. First make the next one and print both, for the
other hosts to trust the new one beside the old one:
  bridged keys rotate > hosta.pub             # here
  bridged keys trust --beside hosta.pub       # on every other host
Once all have had it for ten seconds, put it in place and restart the daemon:
  bridged keys rotate --apply
When what was signed with the old one has arrived, at the latest after 7 days, the
other hosts can let it go (bridged keys revoke HOST FINGERPRINT); at once, if the
key has become known to somebody.`,
		Args: cobra.NoArgs,
		RunE: a.run(func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.config(cmd)
			if err != nil {
				return err
			}
			was, err := a.ownKey(cfg)
			if err != nil {
				return err
			}
			var is ed25519.PublicKey
			if apply {
				was, is, err = keys.Rotate(cfg.KeyPath(), cfg.TrustDir, cfg.Host, time.Now())
			} else {
				is, err = keys.Next(cfg.KeyPath(), cfg.TrustDir, cfg.Host, a.Rand, time.Now())
			}
			if err != nil {
				return err
			}
			out := rotated{Host: cfg.Host, Was: keys.Fingerprint(was), Is: keys.Fingerprint(is), Applied: apply}
			if !apply {
				out.PublicKeys = []string{strings.TrimSpace(keys.PublicLine(cfg.Host, was)), strings.TrimSpace(keys.PublicLine(cfg.Host, is))}
			}
			return a.emit(out, func(w *printer) {
				a.note("fingerprint of %s: %s, was %s", cfg.Host, out.Is, out.Was)
				for _, line := range out.PublicKeys {
					w.text(line + "\n")
				}
				if apply {
					a.note("the new key is in place; restart the daemon to sign with it")
				} else {
					a.note("nothing is changed yet: have the other hosts trust it (keys trust --beside), then run this with --apply")
				}
			})
		}),
	}
	cmd.Flags().BoolVar(&apply, "apply", false, "put the next key in place; every other host has to trust it by now")
	return cmd
}

// rotated is the JSON of a change of keys; Is is the next one until it is
// applied.
type rotated struct {
	Host       string   `json:"host"`
	Was        string   `json:"was"`
	Is         string   `json:"is"`
	Applied    bool     `json:"applied"`
	PublicKeys []string `json:"public_keys,omitempty"`
}

func (a *app) keysRevokeCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke HOST [FINGERPRINT]",
		Short: "Trust a gateway no more, or one of its keys",
		Long: `Trust the gateway of HOST no more, or only not its key with that FINGERPRINT (see
"bridged keys list"). What was revoked is printed. A running daemon believes it no
more within some seconds.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: a.run(func(cmd *cobra.Command, pos []string) error {
			cfg, err := a.config(cmd)
			if err != nil {
				return err
			}
			print := ""
			if len(pos) == 2 {
				if print = pos[1]; print == "" { // an empty variable must not take all of them
					return usagef("the fingerprint is empty; see 'bridged keys list', or leave it out to revoke all keys of %s", pos[0])
				}
			}
			prints, err := keys.Revoke(cfg.TrustDir, pos[0], print)
			if err != nil {
				return err
			}
			out := trusted{Host: pos[0], Fingerprints: append([]string{}, prints...)} // of a file that nobody can read: none
			return a.emit(out, func(w *printer) { printTrusted(w, []trusted{out}) })
		}),
	}
}

// trusted is one gateway that is believed, or was until now.
type trusted struct {
	Host         string   `json:"host"`
	Self         bool     `json:"self,omitempty"`
	Fingerprints []string `json:"fingerprints"`
	Since        []string `json:"since,omitempty"` // one for each fingerprint
	Uses         []string `json:"uses,omitempty"`  // of this host's own: current, next or earlier
}

// use says what one of this host's own keys is for; next is nil where none is
// drawn.
func use(key, current, next ed25519.PublicKey) string {
	switch {
	case key.Equal(current):
		return "current"
	case key.Equal(next):
		return "next"
	}
	return "earlier"
}

// written is a time, or nothing where none is known.
func written(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func printTrusted(w *printer, all []trusted) {
	var rows [][]string
	head := []string{"host", "fingerprint"}
	for _, t := range all {
		if t.Since != nil {
			head = []string{"host", "fingerprint", "since"}
		}
	}
	for _, t := range all {
		for i, p := range t.Fingerprints {
			host := t.Host
			if t.Self {
				host += " (this host"
				if len(t.Uses) > 1 {
					host += ", " + t.Uses[i] + " key"
				}
				host += ")"
			}
			row := []string{host, p}
			if t.Since != nil {
				row = append(row, t.Since[i])
			}
			rows = append(rows, row)
		}
	}
	w.table(head, rows)
}

func (a *app) keysListCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the gateways that are trusted here, by which keys and since when",
		Args:  cobra.NoArgs,
		RunE: a.run(func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.config(cmd)
			if err != nil {
				return err
			}
			pub, err := a.ownKey(cfg)
			if err != nil {
				return err
			}
			next, err := keys.Drawn(cfg.KeyPath())
			if err != nil {
				return err
			}
			trust, err := keys.OpenTrust(cfg.TrustDir, cfg.Host, pub)
			if err != nil {
				return err
			}
			out := struct {
				Trusted  []trusted `json:"trusted"`
				Problems []string  `json:"problems"`
			}{Problems: []string{}}
			for _, p := range trust.Problems() {
				out.Problems = append(out.Problems, p.Error())
			}
			for _, host := range trust.Hosts() {
				t := trusted{Host: host, Self: host == cfg.Host}
				since, err := keys.Since(cfg.TrustDir, host)
				if err != nil && !slices.Contains(out.Problems, err.Error()) {
					out.Problems = append(out.Problems, err.Error())
				}
				if t.Self {
					if since == nil {
						since = map[string]time.Time{}
					}
					if since[keys.Fingerprint(pub)], err = keys.MadeAt(cfg.KeyPath()); err != nil {
						return err
					}
				}
				for _, k := range trust.Keys(host) {
					print := keys.Fingerprint(k)
					t.Fingerprints = append(t.Fingerprints, print)
					t.Since = append(t.Since, written(since[print]))
					if t.Self {
						t.Uses = append(t.Uses, use(k, pub, next))
					}
				}
				out.Trusted = append(out.Trusted, t)
			}
			return a.emit(out, func(w *printer) {
				printTrusted(w, out.Trusted)
				for _, p := range out.Problems {
					a.note("warning: %s", p)
				}
			})
		}),
	}
}
