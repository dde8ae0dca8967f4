package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker of a release; else the module's own is told.
var version string

// buildVersion is version, or what the Go tool noted in the binary.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(unknown)"
}

func (a *app) versionCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program",
		GroupID: groupHost,
		Args:    cobra.NoArgs,
		RunE: a.run(func(*cobra.Command, []string) error {
			out := struct {
				Version  string `json:"version"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}{a.Version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return a.emit(out, func(w *printer) { w.line("bridged %s (%s, %s)", out.Version, out.Go, out.Platform) })
		}),
	}
}
