package policies

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"allocsim/internal/edit"
)

// Env is what a policy is bound to when it is made.
type Env struct {
	Device Device
	// Limit is the most bytes the allocator may take from the device (PyTorch's
	// memory fraction × total); 0 = none.
	Limit int64
	// Streams is the number of stream indices that requests will use; a hint.
	Streams int
	// Reuse is a policy that is done, or nil: one of the same kind may take
	// its memory. Neither it nor its Stats may be used afterwards.
	Reuse Policy
}

// Registration describes one allocator.
type Registration struct {
	Name string
	// Doc is one line for lists; Options one line that names the options with
	// their defaults.
	Doc, Options string
	// Aliases are other names by which people ask for it, in lower case and
	// without separators; Parse answers them with the right name.
	Aliases []string
	// Parse reads the text after the colon (empty when there is none). Errors
	// name the option and what it takes.
	Parse func(options string) (*Spec, error)
	// ParseFor reads the options under the rules of a release of the
	// allocator's framework, such as "2.6"; empty is the latest. nil if they
	// are the same for all.
	ParseFor func(options, release string) (*Spec, error)
}

var registry struct {
	sync.RWMutex
	byName map[string]Registration
}

// Register makes an allocator known to Parse. It panics if the name is taken
// or empty: that is a mistake of the program, seen at its start.
func Register(r Registration) {
	registry.Lock()
	defer registry.Unlock()
	if registry.byName == nil {
		registry.byName = make(map[string]Registration)
	}
	if _, taken := registry.byName[r.Name]; taken || r.Name == "" || r.Parse == nil {
		panic(fmt.Sprintf("policies: cannot register %q: the name is taken or the registration incomplete", r.Name))
	}
	registry.byName[r.Name] = r
}

// Registered lists the allocators by name.
func Registered() []Registration {
	registry.RLock()
	defer registry.RUnlock()
	var rs []Registration
	for _, r := range registry.byName {
		rs = append(rs, r)
	}
	slices.SortFunc(rs, func(a, b Registration) int { return strings.Compare(a.Name, b.Name) })
	return rs
}

// Parse reads "NAME" or "NAME:OPTIONS".
func Parse(s string) (*Spec, error) { return ParseFor(s, "") }

// ParseFor is Parse under the rules of a release of the allocator's framework,
// where they differ by release; empty is the latest.
func ParseFor(s, release string) (*Spec, error) {
	name, options, _ := strings.Cut(s, ":")
	name = strings.TrimSpace(name)
	registry.RLock()
	r, ok := registry.byName[name]
	registry.RUnlock()
	if !ok {
		var names []string
		for _, r := range Registered() {
			names = append(names, r.Name)
		}
		hint := ""
		if r := nearest(name); r != nil {
			hint = fmt.Sprintf("; did you mean %s (%s)?", r.Name, r.Doc)
		}
		return nil, fmt.Errorf("unknown policy %q%s; known: %s", name, hint, strings.Join(names, ", "))
	}
	parse := r.Parse
	if r.ParseFor != nil && release != "" {
		parse = func(options string) (*Spec, error) { return r.ParseFor(options, release) }
	}
	spec, err := parse(options)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", name, err)
	}
	return spec, nil
}

// nearest is the one allocator that a wrong name asks for: by another name of
// it, or misspelt; nil if there is none.
func nearest(name string) *Registration {
	plain := strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(name))
	var best *Registration
	least := 1 + len(plain)/3
	for _, r := range Registered() {
		if slices.Contains(r.Aliases, plain) {
			return &r
		}
		switch d := edit.Distance(plain, strings.ReplaceAll(r.Name, "-", "")); {
		case d < least:
			best, least = &r, d
		case d == least:
			best = nil
		}
	}
	return best
}

// Options splits "key=value,key=value" for a policy's Parse. The error names a
// part without "=", a key given twice or one that is not in known.
func Options(s string, known ...string) (map[string]string, error) {
	m := make(map[string]string)
	if strings.TrimSpace(s) == "" {
		return m, nil
	}
	for _, part := range strings.Split(s, ",") {
		k, v, ok := strings.Cut(part, "=")
		k, v = strings.TrimSpace(k), strings.TrimSpace(v)
		switch {
		case !ok:
			return nil, fmt.Errorf("option %q has no value; write %s=VALUE", part, k)
		case !slices.Contains(known, k):
			return nil, fmt.Errorf("unknown option %q; known: %s", k, strings.Join(known, ", "))
		}
		if _, twice := m[k]; twice {
			return nil, fmt.Errorf("option %q is given twice", k)
		}
		m[k] = v
	}
	return m, nil
}
