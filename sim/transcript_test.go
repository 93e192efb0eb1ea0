package sim_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"allocsim/internal/bytesize"
	"allocsim/policies"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
)

// TestTranscripts runs testdata/*.txt: small programs with what the allocator
// did. The one command is
//
//	run [policy=P] [conf=S] [capacity=SIZE] [fraction=F] [torch=V] [addresses=down|up]
//
// and its input one request a line:
//
//	alloc NAME SIZE [stream=N]    free NAME    free_pending NAME
//	complete NAME                 empty_cache  show [TEXT]
//	for I=A..B … end              show every=N [TEXT]  (in a loop)
//
// {I} in a name is the loop's counter. Sizes are as people type them, or
// N*SIZE. Each show prints one line.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if !strings.HasSuffix(path, ".txt") {
			return
		}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "run" {
				t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
			}
			p := &program{t: t, d: d, live: make(map[string]policies.Handle)}
			p.start()
			p.lines(strings.Split(d.Input, "\n"), nil)
			return p.out.String()
		})
	})
}

type program struct {
	t      *testing.T
	d      *datadriven.TestData
	policy policies.Policy
	device *sim.Device
	live   map[string]policies.Handle
	out    strings.Builder
}

func (p *program) fatal(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatalf("%s: %v", p.d.Pos, err)
	}
}

func (p *program) start() {
	var name, options, version, addresses string
	var capacity, total int64
	var fraction float64
	for _, a := range p.d.CmdArgs {
		v := strings.Join(a.Vals, ",")
		var err error
		switch a.Key {
		case "policy":
			name = v
		case "conf":
			options = v
		case "torch":
			version = v
		case "addresses":
			addresses = v
		case "capacity":
			capacity, err = bytesize.Parse(v)
		case "total":
			total, err = bytesize.Parse(v)
		case "fraction":
			fraction, err = strconv.ParseFloat(v, 64)
		default:
			err = fmt.Errorf("unknown argument %q", a.Key)
		}
		p.fatal(err)
	}
	v := conf.Latest
	if version != "" {
		var err error
		v, err = conf.ParseVersion(version)
		p.fatal(err)
	}
	var spec *policies.Spec
	var err error
	if name == "" {
		spec, err = torch.Parse(options, v)
	} else {
		spec, err = policies.Parse(name)
	}
	p.fatal(err)
	c := sim.DeviceConfig{Capacity: capacity, Total: total}
	switch addresses {
	case "down":
		c.Addresses = sim.AddressesDown
	case "up":
		c.Addresses = sim.AddressesUp
	}
	p.device = sim.NewDevice(c)
	env := policies.Env{Device: p.device}
	if fraction > 0 {
		env.Limit = spec.LimitOf(fraction, p.device.Total())
	}
	p.policy, err = spec.New(env)
	p.fatal(err)
}

type loop struct {
	name string
	at   int
}

func (p *program) lines(lines []string, l *loop) {
	for k := 0; k < len(lines); k++ {
		f := strings.Fields(lines[k])
		if len(f) == 0 {
			continue
		}
		if f[0] == "for" {
			end := k + 1
			for strings.TrimSpace(lines[end]) != "end" {
				end++
			}
			name, bounds, _ := strings.Cut(f[1], "=")
			var from, to int
			_, err := fmt.Sscanf(bounds, "%d..%d", &from, &to)
			p.fatal(err)
			for i := from; i <= to; i++ {
				p.lines(lines[k+1:end], &loop{name, i})
			}
			k = end
			continue
		}
		p.line(f, l)
	}
}

func (p *program) line(f []string, l *loop) {
	fill := func(s string) string {
		if l == nil {
			return s
		}
		return strings.ReplaceAll(s, "{"+l.name+"}", strconv.Itoa(l.at))
	}
	switch f[0] {
	case "alloc":
		n := int64(1)
		text := f[2]
		if times, rest, ok := strings.Cut(text, "*"); ok {
			var err error
			n, err = strconv.ParseInt(times, 10, 64)
			p.fatal(err)
			text = rest
		}
		size, err := bytesize.Parse(text)
		p.fatal(err)
		r := policies.Request{Size: n * size}
		for _, a := range f[3:] {
			if v, ok := strings.CutPrefix(fill(a), "stream="); ok {
				stream, err := strconv.ParseUint(v, 10, 16)
				p.fatal(err)
				r.Stream = uint16(stream)
			}
		}
		b, err := p.policy.Malloc(r)
		if errors.Is(err, policies.ErrOutOfMemory) {
			fmt.Fprintf(&p.out, "alloc %s: out of memory\n", fill(f[1]))
			return
		}
		p.fatal(err)
		p.live[fill(f[1])] = b.Handle
	case "free", "free_pending":
		p.fatal(p.policy.Free(p.live[fill(f[1])], f[0] == "free_pending"))
	case "complete":
		p.fatal(p.policy.FreeCompleted(p.live[fill(f[1])]))
	case "empty_cache":
		p.fatal(p.policy.EmptyCache())
	case "show":
		text := f[1:]
		if len(text) > 0 {
			if n, ok := strings.CutPrefix(text[0], "every="); ok {
				every, err := strconv.Atoi(n)
				p.fatal(err)
				if l.at%every != 0 {
					return
				}
				text = text[1:]
			}
		}
		s := p.policy.Stats()
		if len(text) > 0 {
			fmt.Fprintf(&p.out, "%s: ", fill(strings.Join(text, " ")))
		}
		fmt.Fprintf(&p.out, "reserved %s, allocated %s, %d device allocs, %d device frees",
			amount(s.ReservedBytes[policies.All].Current), amount(s.AllocatedBytes[policies.All].Current), s.NumDeviceAlloc, s.NumDeviceFree)
		if s.NumAllocRetries > 0 {
			fmt.Fprintf(&p.out, ", %d retries", s.NumAllocRetries)
		}
		if s.NumOOMs > 0 {
			fmt.Fprintf(&p.out, ", %d OOMs", s.NumOOMs)
		}
		p.out.WriteByte('\n')
	default:
		p.t.Fatalf("%s: unknown request %q", p.d.Pos, f[0])
	}
}

// amount is exact: whole MiB where possible, else bytes.
func amount(n int64) string {
	if n%bytesize.MiB == 0 {
		return fmt.Sprintf("%d MiB", n/bytesize.MiB)
	}
	return fmt.Sprintf("%d B", n)
}
