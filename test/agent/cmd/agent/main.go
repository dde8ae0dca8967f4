// Command agent is a scripted coding agent for a terminal pane; see the
// package fleetd/test/agent.
package main

import (
	"os"

	"fleetd/test/agent"
)

func main() { os.Exit(agent.Main(os.Args)) }
