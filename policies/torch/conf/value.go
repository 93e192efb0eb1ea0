package conf

import (
	"fmt"
	"math"
	"math/bits"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"allocsim/internal/edit"
)

// example is a complete option for hints.
func (k *Key) example() string {
	switch k.Name {
	case "backend":
		return "backend:cudaMallocAsync"
	case "garbage_collection_threshold":
		return "garbage_collection_threshold:0.8"
	case "per_process_memory_fraction":
		return "per_process_memory_fraction:0.9"
	case "roundup_power2_divisions":
		return "roundup_power2_divisions:4"
	case "pinned_num_register_threads":
		return "pinned_num_register_threads:8"
	}
	if k.Type == MiB {
		return k.Name + ":128"
	}
	return k.Name + ":True"
}

// value reads the value of k, sets it in the Config and returns it as it
// should be written, or as it was probably meant, with the first release that
// takes it. An empty text means that there is no telling.
func (p *parser) value(k *Key, pt part) (string, Version) {
	at := pt.value
	raw := p.text(at)
	if pt.meant != "" {
		raw = pt.meant
	} else if bare := p.unquote(raw); bare != raw && !pt.list && bare != "" {
		p.errorf(at, "write "+k.Name+":"+bare, "the value is %s with its quotes or braces", quote(raw))
		lo := at.lo + strings.Index(raw, bare)
		at, raw = span{lo, lo + len(bare)}, bare
	}
	if k.Type == Divisions {
		return p.divisions(pt, at)
	}
	if pt.list {
		p.errorf(at, "write "+k.example(), "%s takes one %s, not a list", k.Name, k.Type)
		p.fixable = false
		return "", k.Since
	}
	if joined := strings.Join(strings.Fields(raw), ""); joined != raw {
		if k.Type != MiB && k.Type != Count || !endsInUnit.MatchString(joined) {
			p.warnf(at, "write "+k.Name+":"+joined, "space inside the value; PyTorch drops it")
		}
		raw = joined
	}
	switch k.Type {
	case Bool:
		return p.boolean(k, at, raw), k.Since
	case Choice:
		return p.backend(at, raw), k.Since
	case Fraction:
		return p.fraction(k, at, raw), k.Since
	default:
		return p.whole(k, at, raw)
	}
}

func (p *parser) boolean(k *Key, at span, raw string) string {
	switch raw {
	case "True", "False":
		k.setBool(&p.cfg, raw == "True")
		return raw
	}
	meant := ""
	switch strings.ToLower(strings.TrimRight(raw, ".;!")) {
	case "true", "t", "1", "yes", "y", "on", "enable", "enabled", "ture", "treu", "tru":
		meant = "True"
	case "false", "f", "0", "no", "n", "off", "disable", "disabled", "none", "flase", "fales":
		meant = "False"
	default:
		p.fixable = false
		p.errorf(at, "write "+k.Name+":True or leave the option out", "%s is neither True nor False", quote(raw))
		return ""
	}
	p.errorf(at, "write "+k.Name+":"+meant, "%s is not taken; only True and False, spelt so", quote(raw))
	return meant
}

func (p *parser) backend(at span, raw string) string {
	switch Backend(raw) {
	case Native, CudaMallocAsync:
		p.cfg.Backend = Backend(raw)
		return raw
	}
	for _, b := range []Backend{Native, CudaMallocAsync} {
		if strings.EqualFold(strings.ReplaceAll(raw, "_", ""), string(b)) || edit.Distance(strings.ToLower(raw), strings.ToLower(string(b))) <= 2 {
			p.errorf(at, "write backend:"+string(b), "unknown backend %s; upper and lower case count", quote(raw))
			return string(b)
		}
	}
	p.fixable = false
	hint := "write backend:native or backend:cudaMallocAsync"
	if raw == "hipMallocAsync" {
		hint = "only ROCm builds take that name; write backend:cudaMallocAsync, which both take"
		p.errorf(at, hint, "hipMallocAsync is unknown to CUDA builds")
		return ""
	}
	p.errorf(at, hint, "unknown backend %s", quote(raw))
	return ""
}

var (
	decimal    = regexp.MustCompile(`^\+?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$`)
	percentage = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(?:%|percent|pct)$`)
)

func (p *parser) fraction(k *Key, at span, raw string) string {
	gc := k.Name == "garbage_collection_threshold"
	rangeText := "from 0 to 1"
	if gc {
		rangeText = "between 0 and 1, both excluded"
	}
	if m := percentage.FindStringSubmatch(raw); m != nil {
		x, _ := strconv.ParseFloat(m[1], 64)
		if s := formatFloat(x / 100); k.badFraction(x/100) == "" {
			p.errorf(at, "write "+k.Name+":"+s, "a percentage; PyTorch drops the %% sign and reads %s", m[1])
			return s
		}
	}
	if !decimal.MatchString(raw) {
		p.fixable = false
		hint := "write " + k.example()
		if strings.HasPrefix(raw, "-") {
			p.errorf(at, hint, "%s is below 0; %s takes a number %s", quote(raw), k.Name, rangeText)
		} else if x, err := stod(raw); err == nil {
			p.errorf(at, hint, "%s is not a plain number; PyTorch would read %s", quote(raw), formatFloat(x))
		} else {
			p.errorf(at, hint, "%s is not a number", quote(raw))
		}
		return ""
	}
	x, err := stod(raw)
	if err == nil && k.badFraction(x) == "" {
		k.setFloat(&p.cfg, x)
		if !gc && x == 0 {
			p.warnf(at, "leave it out for no limit", "a fraction of 0 makes every allocation fail")
		}
		return raw
	}
	switch {
	case gc && err == nil && (x == 0 || x == 1):
		p.errorf(at, "leave the option out: off is the default", "%s takes a number %s; %s would mean never", k.Name, rangeText, raw)
		return "" // dropped by the repair
	case x >= 2 && x <= 100 && k.badFraction(x/100) == "":
		p.errorf(at, "write "+k.Name+":"+formatFloat(x/100), "%s is a share %s, not a percentage", k.Name, rangeText)
		return formatFloat(x / 100)
	}
	p.fixable = false
	p.errorf(at, "write "+k.example(), "%s is out of range; %s takes a number %s", quote(raw), k.Name, rangeText)
	return ""
}

var (
	number     = regexp.MustCompile(`^([+-]?)([0-9]+)(\.[0-9]*)?(.*)$`)
	endsInUnit = regexp.MustCompile(`[0-9](?i:[kmgt]i?b?|b|bytes?|megabytes?|gigabytes?)$`)
)

// unitsMiB is what a unit means in MiB for hints. People mean binary units.
var unitsMiB = map[string]float64{
	"b": 1.0 / mib, "byte": 1.0 / mib, "bytes": 1.0 / mib, "k": 1.0 / 1024, "kb": 1.0 / 1024, "kib": 1.0 / 1024,
	"m": 1, "mb": 1, "mib": 1, "megabyte": 1, "megabytes": 1,
	"g": 1024, "gb": 1024, "gib": 1024, "gigabyte": 1024, "gigabytes": 1024,
	"t": 1 << 20, "tb": 1 << 20, "tib": 1 << 20,
}

// whole reads a whole number, of MiB or of things.
func (p *parser) whole(k *Key, at span, raw string) (string, Version) {
	n, text, ok := p.integer(k.Name, k.Type == MiB, at, raw)
	if !ok {
		if text == "" {
			if k.Name == "max_split_size_mb" && (strings.HasPrefix(raw, "-") || isUnlimitedWord(raw)) {
				return "", k.Since // unlimited is the default: the repair drops it
			}
			p.fixable = false
		}
		return text, k.Since
	}
	since := k.Since
	large := p.cfg.LargeSegmentSize / mib
	switch k.Name {
	case "max_split_size_mb", "max_non_split_rounding_mb":
		least := p.v.minSplitMiB(p.cfg.LargeSegmentSize)
		if int64(min(n, math.MaxInt64)) == large {
			since = maxVersion(since, Version{2, 10})
			if p.v.Compare(since) < 0 && p.v.Compare(k.Since) >= 0 {
				p.errors = append(p.errors, Problem{at.lo, at.hi - at.lo,
					fmt.Sprintf("%s must be above %d before PyTorch 2.10, which is the first to take %d", k.Name, large, large),
					fmt.Sprintf("write %s:%d", k.Name, least)})
				return itoa(least), since
			}
		} else if n < uint64(least) {
			limit := fmt.Sprintf("at least %d", least)
			if !p.v.sharedParser() {
				limit = fmt.Sprintf("above %d", least-1)
			}
			p.errorf(at, fmt.Sprintf("write %s:%d, or leave it out: unlimited is the default", k.Name, least), "%d is too small; %s must be %s", n, k.Name, limit)
			if k.Name == "max_non_split_rounding_mb" {
				p.errors[len(p.errors)-1].Hint = fmt.Sprintf("write %s:%d or more", k.Name, least)
			}
			if n == 0 {
				p.fixable = false
				return "", since
			}
			return itoa(least), since
		}
		if k.Name == "max_split_size_mb" && n >= 1<<20 {
			p.warnf(at, "leave it out", "%d MiB is more than any GPU has: the same as no limit", n)
		}
	case "pinned_num_register_threads":
		if msg := k.badSize(n, &p.cfg, p.v); msg != "" {
			meant := min(uint64(128), 1<<max(bits.Len64(n)-1, 0))
			p.errorf(at, fmt.Sprintf("write %s:%d", k.Name, meant), "%d threads; the number must be a power of two, at most 128", n)
			return itoa(int64(meant)), since
		}
	default:
		if msg := k.badSize(n, &p.cfg, p.v); msg != "" {
			p.fixable = false
			least := map[string]int{"large_segment_size_mb": 11, "roundup_bypass_threshold_mb": 21, "pinned_reserve_segment_size_mb": 1}[k.Name]
			p.errorf(at, fmt.Sprintf("write %s:%d or more, or leave it out", k.Name, least), "%d is too small; %s must be at least %d", n, k.Name, least)
			return "", since
		}
	}
	if k.Type == MiB {
		k.setInt(&p.cfg, mebibytes(n))
	} else {
		k.setInt(&p.cfg, int64(n))
	}
	return text, since
}

func isUnlimitedWord(s string) bool {
	switch strings.ToLower(s) {
	case "unlimited", "inf", "infinity", "none", "max", "off", "false", "null", "default", "no", "never":
		return true
	}
	return false
}

// integer reads a whole number where size says whether it counts MiB. text is
// how it should be written; ok is unset when an error was reported.
func (p *parser) integer(name string, size bool, at span, raw string) (n uint64, text string, ok bool) {
	write := func(s string) string {
		if name == "" {
			return "write " + s
		}
		return "write " + name + ":" + s
	}
	m := number.FindStringSubmatch(raw)
	if m == nil {
		hint := "write digits only"
		if isUnlimitedWord(raw) && size {
			hint = "leave the option out to have no limit"
		}
		p.errorf(at, hint, "%s is not a whole number", quote(raw))
		return 0, "", false
	}
	sign, digits, frac, suffix := m[1], m[2], m[3], strings.TrimSpace(m[4])
	if sign == "-" {
		hint := "write a positive number"
		if name == "max_split_size_mb" {
			hint = "leave the option out to have no limit"
		}
		p.errorf(at, hint, "%s is negative; PyTorch would take it for a huge number", quote(raw))
		return 0, "", false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || !p.v.sharedParser() && n > math.MaxInt32 {
		p.errorf(at, "leave the option out to have no limit", "%s is out of range", quote(raw))
		return 0, "", false
	}
	text = strconv.FormatUint(n, 10)
	factor, isUnit := unitsMiB[strings.ToLower(suffix)]
	switch {
	case size && isUnit && suffix != "":
		whole := float64(n)
		if frac != "" && frac != "." {
			f, _ := strconv.ParseFloat("0"+frac, 64)
			whole += f
		}
		meant := math.Round(whole * factor)
		if meant == float64(n) && factor == 1 {
			p.warnf(at, write(text), "the unit is not part of the value: PyTorch ignores what follows the digits")
			return n, text, true
		}
		text = ""
		hint := write("N") + ", a whole number of MiB"
		if meant >= 1 && meant < 1<<40 {
			text = strconv.FormatFloat(meant, 'f', 0, 64)
			hint = write(text)
		}
		p.errorf(at, hint, "the value counts MiB and takes no unit; PyTorch would read %q as %d MiB", raw, n)
		return 0, text, false
	case suffix != "":
		if !size {
			text = ""
		} else if sep := strings.Trim(suffix, "_'0123456789"); sep == "" {
			text = ""
		}
		p.errorf(at, write("N")+", digits only", "%s is not a whole number; PyTorch would read %d", quote(raw), n)
		return 0, "", false
	case strings.Trim(frac, ".0") != "":
		p.errorf(at, write(text), "%s is not a whole number; PyTorch would read %d", quote(raw), n)
		return 0, text, false
	case frac != "":
		p.warnf(at, write(text), "%s is not a whole number; PyTorch reads %d", quote(raw), n)
	case sign == "+":
		p.warnf(at, write(text), "the sign is not needed")
	}
	return n, text, true
}

// maxDivisions bounds what is sensible: with 2^20 divisions no request below
// 512 MiB is rounded any differently.
const maxDivisions = 1 << 20

// divisionCount reads a number of divisions. zero says whether 0 is allowed.
func (p *parser) divisionCount(at span, zero bool) (d int64, text string, ok bool) {
	raw := p.text(at)
	n, text, ok := p.integer("", false, at, raw)
	if !ok {
		return 0, "", false
	}
	switch {
	case n == 0 && zero:
		return 0, text, true
	case n == 0:
		p.errorf(at, "leave the option out: no rounding is the default (a list does take 0)", "0 is not a power of two")
		return 0, "0", false
	case bits.OnesCount64(n) != 1:
		low := uint64(1) << (bits.Len64(n) - 1)
		if n > maxDivisions {
			low = maxDivisions
		}
		p.errorf(at, fmt.Sprintf("write %d or %d", low, low*2), "%d is not a power of two", n)
		return int64(low), strconv.FormatUint(low, 10), false
	case n > maxDivisions:
		p.errorf(at, "write a small power of two, such as 4", "%d divisions are too many to have an effect", n)
		return 0, "", false
	}
	return int64(n), text, true
}

// divisions reads the value of roundup_power2_divisions: a number or a list.
func (p *parser) divisions(pt part, at span) (string, Version) {
	scalar := lookup("roundup_power2_divisions").Since
	if !pt.list && !strings.ContainsAny(p.text(at), separators) {
		d, text, ok := p.divisionCount(at, false)
		if !ok {
			if text == "0" {
				return "", scalar // the repair drops it
			}
			if text == "" {
				p.fixable = false
			}
			return text, scalar
		}
		for i := range p.cfg.Roundup {
			p.cfg.Roundup[i] = d
		}
		p.warnOneDivision(at, d)
		return text, scalar
	}
	since := Version{2, 0}
	p.needs(at, since, "roundup_power2_divisions takes a list")
	body := at
	raw := p.text(at)
	if pt.list {
		_, n := utf8.DecodeRuneInString(raw)
		if !strings.HasPrefix(raw, "[") {
			p.errorf(span{at.lo, at.lo + n}, "write the list in [ ]", "'%s' where '[' belongs", raw[:n])
		}
		body.lo += n
		if pt.closed {
			closing, m := utf8.DecodeLastRuneInString(p.src[at.lo:pt.listEnd])
			body.hi = pt.listEnd - m
			if closing != ']' {
				p.errorf(span{body.hi, body.hi + m}, "write the list in [ ]", "'%c' where ']' belongs", closing)
			}
			if tail := p.trim(span{body.hi + m, at.hi}); tail.lo < tail.hi {
				p.errorf(tail, "remove it, or write a comma before it", "%s after the list", quote(p.text(tail)))
				p.fixable = false
			}
		} else {
			p.errorf(span{at.hi, at.hi}, "close the list with ']'", "PYTORCH_CUDA_ALLOC_CONF ends inside the list of roundup_power2_divisions")
			if at.hi < len(strings.TrimRight(p.src, " ")) {
				p.errors[len(p.errors)-1].Message = "the list of roundup_power2_divisions is not closed"
			}
		}
	} else {
		p.errorf(at, "write roundup_power2_divisions:["+raw+"]", "a list needs brackets")
	}
	for body = p.trim(body); strings.HasPrefix(p.text(body), "["); body = p.trim(body) {
		p.errorf(span{body.lo, body.lo + 1}, "one bracket is enough", "'[' inside a list")
		body.lo++
	}
	return p.list(body), since
}

func (p *parser) warnOneDivision(at span, d int64) {
	if d != 1 {
		return
	}
	if p.v.Rules().DivisionsOneUnrounded {
		p.warnf(at, "leave it out", "1 division leaves sizes unrounded in PyTorch 2.3 and older (a bug, pull request 126830)")
	} else {
		p.warnf(at, "leave it out", "1 division is the same as no rounding")
	}
}

// list reads "64:8,256:4,>:1", the inside of the brackets, and returns it as
// it should be written; empty when it cannot be repaired.
func (p *parser) list(body span) string {
	var written []string
	repairable := true
	fail := func() { repairable, p.fixable = false, false }
	last, first := 0, true
	rest := false // ">" seen
	var listed [Intervals]bool
	for lo, end := body.lo, false; !end; {
		hi := lo
		for hi < body.hi && !strings.ContainsRune(",;|", rune(p.src[hi])) {
			hi++
		}
		end = hi >= body.hi
		entry := p.trim(span{lo, hi})
		if !end && p.src[hi] != ',' {
			p.errorf(span{hi, hi + 1}, "write ',' between entries", "'%s' where ',' belongs", p.src[hi:hi+1])
		}
		lo = hi + 1
		if entry.lo == entry.hi {
			switch {
			case !end:
				p.errorf(span{hi, hi + 1}, "remove one comma", "nothing between commas")
			case len(written) > 0:
				p.warnf(span{entry.lo, entry.lo}, "remove the comma before", "trailing comma in the list; PyTorch ignores it")
			case repairable:
				p.warnf(body, "leave the option out", "an empty list sets nothing")
			}
			continue
		}
		text := p.text(entry)
		sep := strings.IndexAny(text, ":=：＝")
		if sep < 0 {
			p.errorf(entry, "write SIZE:DIVISIONS, such as 64:8", "%s in the list is not SIZE:DIVISIONS", quote(text))
			fail()
			continue
		}
		_, n := utf8.DecodeRuneInString(text[sep:])
		if s := text[sep : sep+n]; s != ":" {
			p.errorf(span{entry.lo + sep, entry.lo + sep + n}, "write ':' between size and divisions", "'%s' where ':' belongs", s)
		}
		boundAt := p.trim(span{entry.lo, entry.lo + sep})
		countAt := p.trim(span{entry.lo + sep + n, entry.hi})
		if countAt.lo == countAt.hi {
			p.errorf(span{entry.hi, entry.hi}, "write SIZE:DIVISIONS, such as 64:8", "no divisions after %s", quote(p.text(boundAt)))
			fail()
			continue
		}
		d, count, ok := p.divisionCount(countAt, true)
		if !ok && count == "" {
			fail()
			continue
		}
		bound := p.text(boundAt)
		if bound == ">" || bound == ">=" || bound == "*" || strings.HasPrefix(bound, ">") && allDigits(bound[1:]) {
			if bound != ">" {
				p.errorf(boundAt, "write >:"+count, "%s where '>' belongs; it stands for all larger sizes", quote(bound))
				bound = ">"
			}
			rest = true
			from := last
			if p.v.fillsAfterLast() {
				from++
				if first && end {
					p.warnf(entry, "write roundup_power2_divisions:"+count+" to round all sizes", "a lone '>' leaves sizes below 2 MiB as they are")
				}
				if last == Intervals-1 && !first {
					p.warnf(entry, "remove it", "'>' after the largest size sets nothing")
				}
			} else if !first && p.cfg.Roundup[last] != d {
				p.warnf(entry, "upgrade to PyTorch 2.10, or list the next size instead of '>'", "before PyTorch 2.10 '>' also overwrites the entry before it, %d MiB", 1<<last)
			}
			for j := from; j < Intervals; j++ {
				p.cfg.Roundup[j] = d
			}
			if !end && p.trim(span{lo, body.hi}).lo < body.hi {
				p.warnf(entry, "write '>' last", "'>' is not the last entry")
			}
			written = append(written, ">:"+count)
			continue
		}
		b, size, okBound := p.interval(boundAt)
		if !okBound {
			if size == "" {
				fail()
			} else {
				written = append(written, size+":"+count)
			}
			continue
		}
		index := min(bits.TrailingZeros64(b), Intervals-1)
		if b > 1<<(Intervals-1) {
			p.warnf(boundAt, "write 32768 or less", "%d MiB is above the table's last interval and counts as 32768", b)
		}
		switch {
		case first:
			for j := range index {
				p.cfg.Roundup[j] = d
			}
		case listed[index]:
			p.warnf(boundAt, "keep one", "%d MiB is listed twice; the last one counts", 1<<index)
		case index < last:
			p.warnf(boundAt, "list sizes in ascending order", "%d MiB stands behind %d MiB", 1<<index, 1<<last)
		case index > last+1:
			p.warnf(boundAt, fmt.Sprintf("list %s too if they should be rounded", sizesBetween(last, index)), "sizes from %s stay unrounded: an interval that the list skips has no divisions", rangeBetween(last, index))
		}
		first = false
		listed[index] = true
		p.cfg.Roundup[index] = d
		last = index
		written = append(written, size+":"+count)
	}
	if !first && !rest && last < Intervals-1 && p.cfg.Roundup[last] > 1 {
		p.warnf(body, "add >:N to round them too", "sizes of %s and more stay unrounded: the list has no '>'", sizeText(last+1))
	}
	if !repairable {
		return ""
	}
	return "[" + strings.Join(written, ",") + "]"
}

// interval reads the lower bound of a list entry in MiB.
func (p *parser) interval(at span) (uint64, string, bool) {
	raw := p.text(at)
	m := number.FindStringSubmatch(raw)
	if m != nil && unitsMiB[strings.ToLower(m[4])] > 1 && m[1] != "-" {
		x, _ := strconv.ParseFloat(m[2]+m[3], 64)
		if meant := x * unitsMiB[strings.ToLower(m[4])]; meant >= 1 && meant <= 1<<40 && meant == math.Trunc(meant) && bits.OnesCount64(uint64(meant)) == 1 {
			text := strconv.FormatUint(uint64(meant), 10)
			p.errorf(at, "write "+text, "sizes in the list count MiB and take no unit; PyTorch would read %q as %s MiB", raw, m[2])
			return 0, text, false
		}
	}
	n, text, ok := p.integer("", true, at, raw)
	if !ok {
		return 0, "", false
	}
	if bits.OnesCount64(n) != 1 {
		if n == 0 {
			p.errorf(at, "the smallest size is 1", "0 is not a power of two")
			return 0, "", false
		}
		low := uint64(1) << (bits.Len64(n) - 1)
		hint := fmt.Sprintf("write %d", low)
		if low < 1<<63 {
			hint += fmt.Sprintf(" or %d", low*2)
		}
		p.errorf(at, hint, "%d is not a power of two", n)
		return 0, strconv.FormatUint(low, 10), false
	}
	return n, text, true
}

func sizeText(index int) string {
	if index >= 10 {
		return fmt.Sprintf("%d GiB", 1<<(index-10))
	}
	return fmt.Sprintf("%d MiB", 1<<index)
}

func rangeBetween(last, index int) string {
	return sizeText(last+1) + " to " + sizeText(index)
}

func sizesBetween(last, index int) string {
	var names []string
	for i := last + 1; i < index; i++ {
		names = append(names, strconv.Itoa(1<<i))
	}
	return strings.Join(names, ", ")
}
