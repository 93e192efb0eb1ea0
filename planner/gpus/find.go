package gpus

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"allocsim/internal/edit"
)

// NameError says that a name means no card, or several.
type NameError struct {
	Name string
	// Near are the cards it may mean (Ambiguous) or the nearest spellings.
	Near      []string
	Ambiguous bool
	// Profiles is set when the card is known but has no such MIG profile: Near
	// are its profiles then.
	Profiles bool
}

func (e *NameError) Error() string {
	near := strings.Join(e.Near, ", ")
	switch {
	case e.Profiles && near == "":
		return fmt.Sprintf("GPU %q: no MIG profile is known for this card", e.Name)
	case e.Profiles:
		return fmt.Sprintf("GPU %q: no such MIG profile; known for this card: %s", e.Name, near)
	case e.Ambiguous:
		return fmt.Sprintf("GPU %q could be any of: %s", e.Name, near)
	case near == "":
		return fmt.Sprintf("unknown GPU %q", e.Name)
	}
	return fmt.Sprintf("unknown GPU %q; nearest: %s", e.Name, near)
}

// makers are words that device names carry and people leave out.
var makers = []string{"nvidia", "geforce", "tesla", "quadro", "amd", "instinct", "radeon", "gpu", "graphics"}

// variants are words that make another card of a name: they must be said.
var variants = []string{"ti", "super", "d", "xt", "sff", "ada", "pro", "3e", "nx", "nano", "ai", "laptop"}

var migInName = regexp.MustCompile(`(?i)\b([1-9]g\.[0-9]+gb(?:\+[a-z0-9.]+)*)`)

// maxName bounds the names that Find considers, in bytes.
const maxName = 128

// Find looks a card up by name, forgivingly: case, spaces and punctuation do
// not matter, the maker's words ("NVIDIA", "GeForce", "Tesla") may be left
// out, and so may what tells no two cards apart; torch's own device names work
// ("NVIDIA A100-SXM4-80GB"). A MIG slice is "CARD:PROFILE", as in
// "h100:1g.10gb", or torch's "NVIDIA A100-SXM4-80GB MIG 1g.10gb".
//
// The error is a *NameError that lists what a name could mean, or the nearest
// names when it means nothing.
func (c *Catalogue) Find(name string) (Card, error) {
	if len(name) > maxName {
		return Card{}, &NameError{Name: name[:maxName] + "…"}
	}
	base, profile := name, ""
	if m := migInName.FindStringSubmatchIndex(name); m != nil {
		profile = strings.ToLower(name[m[2]:m[3]])
		base = name[:m[2]] + " " + name[m[3]:]
		base = regexp.MustCompile(`(?i)\bmig\b`).ReplaceAllString(base, " ")
	}
	exact, loose := c.match(base)
	if profile == "" {
		switch {
		case len(exact) == 1:
			return exact[0], nil
		case len(loose) == 1:
			return loose[0], nil
		case len(loose) > 1:
			return Card{}, &NameError{Name: name, Near: names(loose), Ambiguous: true}
		}
		return Card{}, &NameError{Name: name, Near: c.nearest(base)}
	}
	for _, candidates := range [][]Card{exact, loose} {
		var found []Card
		for _, card := range candidates {
			for _, p := range card.Profiles {
				if p.Name == profile {
					found = append(found, card.slice(p))
				}
			}
		}
		switch len(found) {
		case 0:
			continue
		case 1:
			return found[0], nil
		}
		return Card{}, &NameError{Name: name, Near: names(found), Ambiguous: true}
	}
	if len(loose) > 0 {
		var have []string
		for _, card := range loose {
			for _, p := range card.Profiles {
				if !slices.Contains(have, p.Name) {
					have = append(have, p.Name)
				}
			}
		}
		return Card{}, &NameError{Name: name, Near: have, Profiles: true}
	}
	return Card{}, &NameError{Name: name, Near: c.nearest(base)}
}

func names(cards []Card) []string {
	out := make([]string, len(cards))
	for i, c := range cards {
		out[i] = c.Name
	}
	return out
}

// match returns the cards whose name or alias is the query, and those whose
// words the query can be put together from (which include the former).
func (c *Catalogue) match(query string) (exact, loose []Card) {
	q := core(query)
	if q == "" {
		return nil, nil
	}
	for _, card := range c.cards {
		same := core(card.Name) == q
		for _, a := range card.Aliases {
			same = same || core(a) == q
		}
		if same {
			exact = append(exact, card)
		}
		if same || madeOf(q, card) {
			loose = append(loose, card)
		}
	}
	return exact, loose
}

// words splits a name at everything that is no letter or digit, in lower case.
func words(s string) []string {
	return strings.FieldsFunc(strings.ToLower(s), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
}

// squash is the name without anything but letters and digits.
func squash(s string) string { return strings.Join(words(s), "") }

// core is squash without the maker's words.
func core(s string) string {
	ws := words(s)
	return strings.Join(slices.DeleteFunc(ws, func(w string) bool { return slices.Contains(makers, w) }), "")
}

// madeOf reports whether q is a sequence of the card's words that leaves out
// none of its variant words.
func madeOf(q string, card Card) bool {
	ws := words(card.Name)
	for _, a := range card.Aliases {
		ws = append(ws, words(a)...)
	}
	ws = append(ws, makers...)
	ws = append(ws, words(card.Generation)...)
	ws = append(ws, words(card.MemoryKind)...)
	if card.MarketedGB > 0 {
		n := fmt.Sprint(card.MarketedGB)
		ws = append(ws, n, n+"g", n+"gb", n+"gib")
	}
	if slices.ContainsFunc(ws, func(w string) bool { return strings.HasPrefix(w, "sxm") }) {
		ws = append(ws, "sxm")
	}
	slices.Sort(ws)
	ws = slices.Compact(ws)

	// A card's variant words get a bit each; all must be used. Aliases may
	// leave them out, so only those of the name count.
	bit := make(map[string]uint8)
	for _, w := range words(card.Name) {
		if _, has := bit[w]; !has && len(bit) < 5 && slices.Contains(variants, w) {
			bit[w] = 1 << len(bit)
		}
	}
	all := uint8(1)<<len(bit) - 1
	// reach[i] has bit m set when q[:i] can be made using the variants m.
	reach := make([]uint64, len(q)+1)
	reach[0] = 1
	for i := range q {
		if reach[i] == 0 {
			continue
		}
		for _, w := range ws {
			if strings.HasPrefix(q[i:], w) {
				for m := uint8(0); m <= all; m++ {
					if reach[i]>>m&1 == 1 {
						reach[i+len(w)] |= 1 << (m | bit[w])
					}
				}
			}
		}
	}
	return reach[len(q)]>>all&1 == 1
}

// nearest are up to five names, those with a number of the query first, then
// in order of edit distance.
func (c *Catalogue) nearest(query string) []string {
	q := core(query)
	if q == "" {
		return nil
	}
	type scored struct {
		name     string
		distance int
	}
	asked := words(query)
	var all []scored
	for _, card := range c.cards {
		best := edit.Distance(q, core(card.Name))
		for _, a := range card.Aliases {
			best = min(best, edit.Distance(q, core(a)))
		}
		for _, w := range words(card.Name) {
			if strings.ContainsAny(w, "0123456789") && slices.Contains(asked, w) {
				best -= len(q)
			}
		}
		if best <= max(2, len(q)/2) {
			all = append(all, scored{card.Name, best})
		}
	}
	slices.SortStableFunc(all, func(a, b scored) int { return a.distance - b.distance })
	var out []string
	for _, s := range all[:min(len(all), 5)] {
		out = append(out, s.name)
	}
	return out
}
