package main

import (
	"regexp"
	"strings"
)

// The daemon speaks to agents, in the names of the tools and their arguments.
// Who reads the same sentence at a shell has verbs and flags instead. A name in
// a path is none of them.
const (
	notInPath = `(^|[^\w/.-])`
	toolName  = `bridge_(send|poll|read|reply|ask|answer|broadcast|spawn|stop|roster|trace|whoami)\b`
)

// flagOf is the flag that an argument is given with, in every command that
// takes it.
var flagOf = map[string]string{
	"wait_seconds": "--wait", "timeout_seconds": "--timeout", "expires_in_seconds": "--expires", "idempotency_key": "--key",
	"queue_if_offline": "--queue-if-offline", "in_reply_to": "--to-msg", "max": "--max", "from": "--from", "task": "--task",
	"host": "--host", "name": "--name", "group": "--group", "groups": "--group", "fleet": "--fleet", "kind": "--kind", "status": "--status",
}

// placeOf is the place that an argument has in a command line, and the one flag
// that is an argument elsewhere.
var placeOf = map[string]string{
	"send to": "TO", "send content": "CONTENT", "read msg_id": "MSG_ID", "reply content": "CONTENT", "ask question": "QUESTION", "ask to": "--to",
	"answer turn_id": "TURN_ID", "answer content": "CONTENT", "broadcast content": "CONTENT", "spawn profile": "PROFILE",
	"stop target": "TARGET", "trace trace_id": "TRACE_ID",
}

func argumentOf(verb, name string) string {
	if place := placeOf[verb+" "+name]; place != "" {
		return place
	}
	if flag := flagOf[name]; flag != "" {
		return flag
	}
	return `"` + name + `"`
}

var (
	argumentOfTool = regexp.MustCompile(`"(\w+)" of ` + toolName)
	toolNeeds      = regexp.MustCompile(notInPath + toolName + ` needs the argument "(\w+)"`)
	callTool       = regexp.MustCompile(notInPath + `([Cc]all )?` + toolName + `(?: with turn_id\b| from offset 0\b)?`)
	bareArgument   = regexp.MustCompile(notInPath + `(?:(wait_seconds|timeout_seconds|expires_in_seconds|idempotency_key|queue_if_offline|in_reply_to)\b|"(\w+)")`)
	otherWords     = strings.NewReplacer(`Say in "to"`, "Say in --to", "turn_id ", "turn id ", "repeat the call", "repeat the command", "Repeat the call", "Repeat the command")
)

// forShell is a sentence of the daemon for whoever asked it by a command. What
// this program says itself holds paths, and no tools.
func forShell(sentence string) string {
	s := each(argumentOfTool, sentence, func(m []string) string {
		return argumentOf(m[2], m[1]) + " of bridged " + m[2]
	})
	s = each(toolNeeds, s, func(m []string) string {
		return m[1] + "bridged " + m[2] + " needs " + argumentOf(m[2], m[3])
	})
	s = each(callTool, s, func(m []string) string {
		return m[1] + map[string]string{"call ": "run ", "Call ": "Run "}[m[2]] + "bridged " + m[3]
	})
	s = each(bareArgument, s, func(m []string) string {
		switch name := m[2] + m[3]; name {
		case "wait_seconds", "timeout_seconds", "expires_in_seconds", "idempotency_key", "queue_if_offline", "in_reply_to", "max", "task":
			return m[1] + flagOf[name]
		}
		return m[0]
	})
	return otherWords.Replace(s)
}

// each replaces the matches of re, which with gets with their groups.
func each(re *regexp.Regexp, s string, with func(m []string) string) string {
	return re.ReplaceAllStringFunc(s, func(found string) string { return with(re.FindStringSubmatch(found)) })
}
