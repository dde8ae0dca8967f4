package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"fleetd/cmd/bridged/config"
	"fleetd/cmd/bridged/doctor"
)

// examined is the JSON of an examination.
type examined struct {
	Healthy bool             `json:"healthy"`
	Checks  []doctor.Finding `json:"checks"`
}

// errUnhealthy ends a command with the exit code of a failure; what failed was
// printed.
var errUnhealthy = errors.New("something does not work")

// examineWait bounds a whole examination: each wait in it has a bound of its
// own.
const examineWait = 2 * time.Minute

func (a *app) doctorCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what does not work on this host, and what to do",
		Long: `Look at the configuration, the files, the daemon, herdr, the broker and the other
hosts, and say of each whether it is well: ok, worth a look (warn), or what keeps
something from working (fail), and what to do next. Nothing is changed. The exit
code is 1 if something fails. Give it the --config of the daemon, and its flags.`,
		GroupID: groupHost,
		Args:    cobra.NoArgs,
		RunE:    a.run(func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd) }),
	}
	config.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) doctor(cmd *cobra.Command) error {
	out := examined{}
	if t, cfg, err := a.target(cmd); err != nil {
		out.Checks = doctor.Unconfigured(err)
	} else {
		p := doctor.Patient{
			Config: cfg, Broker: fabricConfig(cfg), Version: a.Version, Daemon: a.Dial(target{Socket: cfg.Socket}), Free: free,
		}
		if t.Token != "" {
			p.Bearer = a.Dial(t).Whoami
		}
		stop := a.signals(cmd.Context())
		ctx, cancel := context.WithTimeout(stop, examineWait)
		defer cancel()
		out.Checks = doctor.Examine(ctx, p)
		if err := stop.Err(); err != nil {
			return err
		}
	}
	out.Healthy = doctor.Healthy(out.Checks)
	err := a.emit(out, func(w *printer) {
		for _, f := range out.Checks {
			next := ""
			if f.Next != "" {
				next = " — " + f.Next
			}
			w.text(oneLined(fmt.Sprintf("%-4s  %s: %s%s", f.Level, f.Check, f.What, next)) + "\n")
		}
	})
	if err == nil && !out.Healthy {
		err = errUnhealthy
	}
	return err
}

// free is how many bytes this user can still write at path.
func free(path string) (uint64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return 0, err
	}
	return uint64(fs.Bavail) * uint64(fs.Bsize), nil
}
