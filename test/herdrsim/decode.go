package herdrsim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
)

// splitObject reads one JSON object into its members. A member given twice and
// anything behind the object are errors (reference §1.4).
func splitObject(raw []byte) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	tok, err := dec.Token()
	if err != nil {
		return nil, fmt.Errorf("expected value at line 1 column 1: %w", err)
	}
	if tok != json.Delim('{') {
		return nil, fmt.Errorf("invalid type: %v, expected an object at line 1 column 1", tok)
	}
	fields := map[string]json.RawMessage{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("bad key at line 1 column %d: %w", dec.InputOffset(), err)
		}
		name, _ := key.(string)
		if _, twice := fields[name]; twice {
			return nil, fmt.Errorf("duplicate field `%s` at line 1 column %d", name, dec.InputOffset())
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, fmt.Errorf("bad value at line 1 column %d: %w", dec.InputOffset(), err)
		}
		fields[name] = value
	}
	if _, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("EOF while parsing an object at line 1 column %d: %w", dec.InputOffset(), err)
	}
	if dec.More() {
		return nil, fmt.Errorf("trailing characters at line 1 column %d", dec.InputOffset())
	}
	return fields, nil
}

// decodeObject fills the struct that dst points to, as herdr's decoder does: a
// field tagged need:"required" must be there, a pointer field may be absent or
// null, any other may be absent but not null; unknown members are ignored.
func decodeObject(raw []byte, dst any) error {
	fields, err := splitObject(raw)
	if err != nil {
		return err
	}
	v := reflect.ValueOf(dst).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name := f.Tag.Get("json")
		value, given := fields[name]
		null := given && string(bytes.TrimSpace(value)) == "null"
		switch {
		case !given && f.Tag.Get("need") == "required":
			return fmt.Errorf("missing field `%s`", name)
		case !given, null && f.Type.Kind() == reflect.Pointer:
			continue
		case null:
			return fmt.Errorf("invalid type: null, expected a %s for `%s`", f.Type.Kind(), name)
		}
		if err := json.Unmarshal(value, v.Field(i).Addr().Interface()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// unmarshalEnum reads a string that must be one of known.
func unmarshalEnum(raw []byte, dst *string, known ...string) error {
	if err := json.Unmarshal(raw, dst); err != nil {
		return err
	}
	for _, k := range known {
		if *dst == k {
			return nil
		}
	}
	return fmt.Errorf("unknown variant `%s`, expected one of `%s`", *dst, join(known, "`, `"))
}

func join(words []string, sep string) string {
	var b bytes.Buffer
	for i, w := range words {
		if i > 0 {
			b.WriteString(sep)
		}
		b.WriteString(w)
	}
	return b.String()
}
