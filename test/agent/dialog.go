package agent

// dialog is a question that covers the composer: pastes vanish, Enter takes
// the marked option, which is Yes (agent-facts §6).
type dialog struct {
	name  string
	lines []string
	leave bool // Esc ends the program
	view  bool // no question: Enter closes nothing, Esc does
	again bool // a second question follows the first Enter
}

// dialogs by kind and name; the first of each kind is its permission dialog.
var dialogs = map[string]map[string]dialog{
	"claude": {
		"permission": {lines: []string{" Bash command", "", "   rm -rf build", "   Remove the build directory", "", " Do you want to proceed?", " ❯ 1. Yes",
			"   2. Yes, and don't ask again for rm commands in this project", "   3. No", "", " Esc to cancel · Tab to amend"}},
		"mcp-tool": {lines: []string{" Tool use", "", `   bridge - bridge_reply(content: "x") (MCP)`, "", " Do you want to proceed?", " ❯ 1. Yes",
			"   2. Yes, and don't ask again for bridge - bridge_reply commands in this project", "   3. No", "", " Esc to cancel · Tab to amend"}},
		"trust": {leave: true, lines: []string{" Quick safety check: Is this a project you created or one you trust?", "", " ❯ 1. Yes, I trust this folder", "   2. No, exit", "",
			" Enter to confirm · Esc to cancel"}},
		"mcp-server": {lines: []string{" New MCP server found in this project: bridge", "", " ❯ 1. Use this MCP server", "   2. Continue without using this MCP server", "",
			" Enter to confirm · Esc to cancel"}},
		"question": {lines: []string{" Which one?", "", " ❯ 1. A", "   2. B", "   3. Type something.", "", " Enter to select · ↑/↓ to navigate · Esc to cancel"}},
		"picker":   {lines: []string{" Select model", "", " ❯ 1. Default", "   2. Other", "", " Enter to confirm · Esc to exit"}},
		"transcript": {view: true, lines: []string{" ● Reading the file", "   and more of what was done before", "",
			" Showing detailed transcript · ctrl+o to toggle"}},
		// A dialog that no rule of the multiplexer and no word list knows.
		"strange": {lines: []string{" Shall the thing be done", "", " (x) of course", " ( ) never"}},
	},
	"codex": {
		"permission": {lines: []string{"  Field 1/1", `  Allow the bridge MCP server to run tool "bridge_reply"?`, "", "  › 1. Allow", "    2. Allow for this session", "    3. Always allow",
			"    4. Cancel", "", "  enter to submit | esc to cancel"}},
		"login": {lines: []string{"  Welcome to Codex, OpenAI's command-line coding agent", "", "> 1. Sign in with ChatGPT", "  2. Provide your own API key", "",
			"  Press enter to continue"}},
		"strange": {lines: []string{"  Shall the thing be done", "", "  (x) of course", "  ( ) never"}},
	},
	"opencode": {
		"permission": {again: true, lines: []string{"  △ Permission required", "    bash rm -rf build", "", "   Allow once   Allow always   Reject      ⇆ select  enter confirm"}},
		"again":      {lines: []string{"  △ Permission required", "    edit main.go", "", "   Allow once   Allow always   Reject      ⇆ select  enter confirm"}},
		"strange":    {lines: []string{"  Shall the thing be done", "", "  (x) of course", "  ( ) never"}},
	},
}

// findDialog returns a dialog of a kind by name; "" is its permission dialog.
func findDialog(kind, name string) (dialog, bool) {
	if name == "" {
		name = "permission"
	}
	d, ok := dialogs[kind][name]
	d.name = name
	return d, ok
}
