package gpus

import (
	"bytes"
	_ "embed"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"

	"allocsim/internal/bytesize"
)

//go:embed catalogue.csv
var embedded []byte

// Catalogue is an immutable list of cards with unique names.
type Catalogue struct {
	cards []Card
}

var builtin = sync.OnceValue(func() *Catalogue {
	c, err := (&Catalogue{}).extend(bytes.NewReader(embedded), "catalogue.csv", false)
	if err != nil {
		panic("gpus: the embedded catalogue is broken: " + err.Error())
	}
	return c
})

// Default is the embedded catalogue.
func Default() *Catalogue { return builtin() }

// All lists the embedded cards, ordered by maker and generation.
func All() []Card { return Default().All() }

// Find looks a card or slice up in the embedded catalogue; see
// [Catalogue.Find].
func Find(name string) (Card, error) { return Default().Find(name) }

// All lists the whole cards in the catalogue's order, cards of an extension
// last. The caller may change the slice but not what the cards point to.
func (c *Catalogue) All() []Card { return slices.Clone(c.cards) }

// columns are the columns of a catalogue file. Only name is required.
var columns = []string{
	"name", "profile", "vendor", "generation", "memory_kind", "marketed_gb",
	"reported_bytes", "reported_low", "reported_high", "confidence",
	"nvml_bytes", "sms", "context_low", "context_high", "context_source",
	"aliases", "note", "evidence",
}

var profileName = regexp.MustCompile(`^[1-9]g\.[1-9][0-9]*gb(\+[a-z0-9.]+)*$`)

// Extend returns the catalogue with the cards of a CSV file added. source
// names the file in errors, which also give the line.
//
// The first line names the columns, in any order: name, profile (a MIG profile
// of the card called name: such a line describes the slice), vendor,
// generation, memory_kind, marketed_gb, reported_bytes, reported_low,
// reported_high, confidence, nvml_bytes, sms, context_low, context_high,
// context_source, aliases (separated by semicolons), note, evidence. All but
// name may be absent or empty. Bytes are plain numbers or have a unit, as in
// 23.5GiB. A card that the catalogue has already keeps what the line leaves
// empty. A total without low, high and confidence counts as measured on the
// card itself.
func (c *Catalogue) Extend(r io.Reader, source string) (*Catalogue, error) {
	return c.extend(r, source, true)
}

// Load reads a catalogue file by itself; see [Catalogue.Extend] for its form.
func Load(r io.Reader, source string) (*Catalogue, error) {
	return (&Catalogue{}).extend(r, source, true)
}

func (c *Catalogue) extend(r io.Reader, source string, users bool) (*Catalogue, error) {
	out := &Catalogue{cards: slices.Clone(c.cards)}
	err := readCSV(r, source, columns, []string{"name"}, func(row row) error {
		name := row.text("name")
		i, known := out.index(name)
		if row.text("profile") != "" {
			if !known {
				return fmt.Errorf("a slice of %q, which no line before describes", name)
			}
			p, err := row.profile(users)
			if err != nil {
				return err
			}
			ps := slices.Clone(out.cards[i].Profiles)
			if at := slices.IndexFunc(ps, func(q Profile) bool { return q.Name == p.Name }); at >= 0 {
				ps[at] = p
			} else {
				ps = append(ps, p)
			}
			out.cards[i].Profiles = ps
			return nil
		}
		if strings.Contains(name, ":") {
			return fmt.Errorf("name %q: a colon stands between card and MIG profile; write the profile in the column profile", name)
		}
		if squash(name) == "" {
			return fmt.Errorf("name %q has no letter or digit", name)
		}
		if !known {
			i = len(out.cards)
			out.cards = append(out.cards, Card{Name: name})
		}
		return row.card(&out.cards[i], users)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// index is the place of the card that a line is about: by name, else by the
// only card that has it as an alias or differs by the maker's words.
func (c *Catalogue) index(name string) (int, bool) {
	at := func(name string) int {
		return slices.IndexFunc(c.cards, func(card Card) bool { return squash(card.Name) == squash(name) })
	}
	i := at(name)
	if i < 0 {
		if exact, _ := c.match(name); len(exact) == 1 {
			i = at(exact[0].Name)
		}
	}
	return i, i >= 0
}

// card overwrites c with what the row has.
func (r row) card(c *Card, users bool) error {
	text := func(column string, field *string) {
		if s := r.text(column); s != "" {
			*field = s
		}
	}
	text("vendor", &c.Vendor)
	text("generation", &c.Generation)
	text("memory_kind", &c.MemoryKind)
	text("note", &c.Note)
	text("evidence", &c.Evidence)
	if s := r.text("aliases"); s != "" {
		var aliases []string
		for a := range strings.SplitSeq(s, ";") {
			if a = strings.TrimSpace(a); a != "" {
				aliases = append(aliases, a)
			}
		}
		c.Aliases = aliases
	}
	if t, given, err := r.total(users); err != nil {
		return err
	} else if given {
		c.Total, c.Low, c.High, c.Confidence = t.Total, t.Low, t.High, t.Confidence
	}
	var err error
	size := func(column string, field *int64) bool {
		n, e := r.size(column)
		if e != nil && err == nil {
			err = e
		}
		if n > 0 {
			*field = n
		}
		return n > 0
	}
	size("marketed_gb", &c.MarketedGB)
	size("nvml_bytes", &c.NVML)
	var sms int64
	if size("sms", &sms) {
		c.SMs = int(min(sms, 1<<20))
	}
	low, high := int64(0), int64(0)
	hasLow, hasHigh := size("context_low", &low), size("context_high", &high)
	switch {
	case err != nil:
		return err
	case hasLow != hasHigh:
		return errors.New("context_low and context_high go together")
	case low > high:
		return fmt.Errorf("context_low %d is more than context_high %d", low, high)
	case hasLow:
		c.Overhead = Overhead{Low: low, High: high, Source: r.text("context_source"), Known: true}
	case !c.Overhead.Known:
		c.Overhead = Overhead{Low: anyOverheadLow, High: anyOverheadHigh,
			Source: "no reading was found for this card or its relatives; the range of all cards"}
	}
	return nil
}

func (r row) profile(users bool) (Profile, error) {
	name := strings.ToLower(r.text("profile"))
	if !profileName.MatchString(name) {
		return Profile{}, fmt.Errorf("profile %q is not a MIG profile such as 1g.10gb", r.text("profile"))
	}
	p, _, err := r.total(users)
	p.Name, p.Evidence = name, r.text("evidence")
	return p, err
}

// total reads the columns about the total. given is false when all are empty.
func (r row) total(users bool) (p Profile, given bool, err error) {
	for _, f := range []struct {
		column string
		bytes  *int64
	}{{"reported_bytes", &p.Total}, {"reported_low", &p.Low}, {"reported_high", &p.High}} {
		if *f.bytes, err = r.size(f.column); err != nil {
			return p, false, err
		}
	}
	spread := p.Low != 0 || p.High != 0
	p.Confidence = Confidence(strings.ToLower(r.text("confidence")))
	switch p.Confidence {
	case Exact, Message, NvidiaSMI, Measured:
	case "":
		if users && p.Total > 0 && !spread {
			p.Confidence = Measured
		}
	default:
		return p, false, fmt.Errorf("confidence %q: use exact, message, nvidia-smi or measured", r.text("confidence"))
	}
	if p.Total > 0 {
		if p.Low == 0 {
			p.Low = p.Total
		}
		if p.High == 0 {
			p.High = p.Total
		}
	}
	if p.High == 0 && p.Low > 0 {
		return p, false, errors.New("reported_low needs reported_bytes or reported_high")
	}
	if p.Low > p.High || p.Total > p.High || p.Total > 0 && p.Low > p.Total {
		return p, false, fmt.Errorf("reported_low, reported_bytes and reported_high must ascend: %d, %d, %d", p.Low, p.Total, p.High)
	}
	return p, p.High > 0, nil
}

// row is one line of a CSV file by column name.
type row struct {
	at     map[string]int
	fields []string
}

func (r row) text(column string) string {
	if i, ok := r.at[column]; ok {
		return strings.TrimSpace(r.fields[i])
	}
	return ""
}

// size is a positive size or count; 0 when empty.
func (r row) size(column string) (int64, error) {
	s := r.text(column)
	if s == "" {
		return 0, nil
	}
	n, err := bytesize.Parse(s)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", column, err)
	}
	if n == 0 || n > 1<<50 {
		return 0, fmt.Errorf("%s: %s is out of range (1 byte to 1024 TiB); leave it empty when unknown", column, s)
	}
	return n, nil
}

// readCSV calls each for every line after the header. Errors name source and
// line.
func readCSV(r io.Reader, source string, known, required []string, each func(row) error) error {
	cr := csv.NewReader(r)
	cr.Comment = '#'
	cr.TrimLeadingSpace = true
	header, err := cr.Read()
	if err == io.EOF {
		return fmt.Errorf("%s: empty; the first line must name the columns (%s)", source, strings.Join(known, ", "))
	}
	if err != nil {
		return csvError(source, err)
	}
	at := make(map[string]int, len(header))
	for i, h := range header {
		h = strings.ToLower(strings.TrimSpace(strings.TrimPrefix(h, "\ufeff")))
		if !slices.Contains(known, h) {
			return fmt.Errorf("%s, line 1: unknown column %q; known: %s", source, h, strings.Join(known, ", "))
		}
		if _, twice := at[h]; twice {
			return fmt.Errorf("%s, line 1: column %q stands twice", source, h)
		}
		at[h] = i
	}
	for _, h := range required {
		if _, ok := at[h]; !ok {
			return fmt.Errorf("%s, line 1: the column %q is missing", source, h)
		}
	}
	for {
		fields, err := cr.Read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return csvError(source, err)
		}
		line, _ := cr.FieldPos(0)
		current := row{at, fields}
		for _, h := range required {
			if current.text(h) == "" {
				return fmt.Errorf("%s, line %d: %s is empty", source, line, h)
			}
		}
		if err := each(current); err != nil {
			return fmt.Errorf("%s, line %d: %w", source, line, err)
		}
	}
}

// csvError names source and line.
func csvError(source string, err error) error {
	if pe, ok := errors.AsType[*csv.ParseError](err); ok {
		return fmt.Errorf("%s, line %d: %w", source, pe.Line, pe.Err)
	}
	return fmt.Errorf("%s: %w", source, err)
}
