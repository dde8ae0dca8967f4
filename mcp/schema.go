package mcp

import (
	"encoding/json"

	mcpgo "github.com/mark3labs/mcp-go/mcp"
)

// inputSchema is the JSON schema of A with what the table says about its
// fields. A field without omitempty is required. The old argument names stay
// out of it: they are for callers that know them already.
func inputSchema[A any](args map[string]argument) json.RawMessage {
	t := mcpgo.NewTool("", mcpgo.WithInputSchema[A]())
	schema := object(t.RawInputSchema)
	props, _ := schema["properties"].(map[string]any)
	if props == nil {
		props = map[string]any{}
		schema["properties"] = props
	}
	for name, p := range props {
		prop, ok := p.(map[string]any)
		if !ok {
			continue
		}
		delete(prop, "description")
		a, ok := args[name]
		if !ok {
			continue
		}
		prop["description"] = a.doc
		if a.bounded {
			prop["minimum"], prop["maximum"] = a.min, a.max
		}
		if a.def != nil {
			prop["default"] = a.def
		}
	}
	return encode(plainTypes(schema))
}

// outputSchema is the JSON schema of a result, or of the error in its place: the
// official SDK holds errors to it too, and keeps their words from the agent if
// they do not fit.
func outputSchema[R any]() json.RawMessage {
	t := mcpgo.NewTool("", mcpgo.WithOutputSchema[R]())
	b, err := json.Marshal(t.OutputSchema)
	if err != nil {
		panic(err) // a result type that has no schema: seen by every test
	}
	schema := object(b)
	failed := object(encode(mcpgo.NewTool("", mcpgo.WithOutputSchema[faultBody]()).OutputSchema))
	props, _ := schema["properties"].(map[string]any)
	failure, _ := failed["properties"].(map[string]any)
	props["error"] = failure["error"]
	schema["anyOf"] = []any{
		map[string]any{"required": schema["required"]},
		map[string]any{"required": failed["required"]},
	}
	delete(schema, "required")
	return encode(plainTypes(schema))
}

// plainTypes turns the type lists [null, x] of Go's slices into x: our results
// never carry null (see fitter).
func plainTypes(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if list, ok := e.([]any); ok && k == "type" && len(list) == 2 && list[0] == "null" {
				v[k] = list[1]
				continue
			}
			v[k] = plainTypes(e)
		}
	case []any:
		for i := range v {
			v[i] = plainTypes(v[i])
		}
	}
	return v
}

func object(b []byte) map[string]any {
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		panic(err) // the schema generator's own output
	}
	return m
}

func encode(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of JSON values always encode
	}
	return b
}
