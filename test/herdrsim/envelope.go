package herdrsim

import (
	"encoding/json"
	"fmt"
)

// apiError is the error member of an answer.
type apiError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	id      string // overrides the request's id, for probes (reference §1.4)
}

func (e *apiError) Error() string { return e.Code + ": " + e.Message }

func refuse(code, format string, args ...any) *apiError {
	return &apiError{Code: code, Message: fmt.Sprintf(format, args...)}
}

// request is one decoded line.
type request struct {
	id     string
	name   string
	method method
	params any
}

type rawRequest struct {
	ID     string          `json:"id" need:"required"`
	Method string          `json:"method" need:"required"`
	Params json.RawMessage `json:"params" need:"required"`
}

// decodeRequest fails for everything that herdr answers with invalid_request
// and an empty id: bad JSON, missing or mistyped members, unknown methods and
// undecodable parameters.
func decodeRequest(line []byte) (*request, error) {
	var raw rawRequest
	if err := decodeObject(line, &raw); err != nil {
		return nil, err
	}
	m, ok := methods[raw.Method]
	if !ok {
		if unbuilt(raw.Method) {
			m = notBuilt()
		} else {
			return nil, fmt.Errorf("unknown variant `%s`, expected one of `%s` at line 1 column %d",
				raw.Method, join(methodNames(), "`, `"), len(line))
		}
	}
	params, err := m.decode(raw.Params)
	if err != nil {
		return nil, err
	}
	return &request{id: raw.ID, name: raw.Method, method: m, params: params}, nil
}

// answer makes the one line that ends a request.
func answer(id string, result any, err error) []byte {
	out := map[string]any{"id": id}
	if err == nil {
		out["result"] = result
	} else {
		e, ok := err.(*apiError)
		if !ok {
			e = refuse("internal_error", "%v", err)
		}
		if e.id != "" {
			out["id"] = e.id
		}
		out["error"] = e
	}
	return encodeLine(out)
}

func encodeLine(v any) []byte {
	line, err := json.Marshal(v)
	if err != nil {
		line, _ = json.Marshal(map[string]any{"id": "", "error": refuse("serialization_error", "%v", err)})
	}
	return append(line, '\n')
}

// result is an answer's result: its type tag and its members.
type result map[string]any

func typed(kind string, members ...any) result {
	r := result{"type": kind}
	for i := 0; i+1 < len(members); i += 2 {
		r[members[i].(string)] = members[i+1]
	}
	return r
}
