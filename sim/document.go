package sim

// Document is a Result in the form of the `replay` command's JSON. Sizes are
// bytes, times µs.
type Document struct {
	Policy string `json:"policy"`
	// Conf is the policy's options in normal form.
	Conf string `json:"conf"`
	// Capacity and Limit are null when there is none.
	Capacity *int64 `json:"capacity"`
	Limit    *int64 `json:"limit"`
	// Bound is the bytes that no placement can do without (Need of the trace);
	// 0 where it was not asked for.
	Bound         int64              `json:"bound"`
	Completed     bool               `json:"completed"`
	Events        int                `json:"events"`
	Stats         map[string]int64   `json:"stats"`
	OOMs          []OOMDocument      `json:"ooms"`
	Utilization   float64            `json:"utilization"`
	Fragmentation FragmentationByDoc `json:"fragmentation"`
	Driver        DriverDocument     `json:"driver"`
	Span          *Span              `json:"span,omitempty"`
	Notes         []string           `json:"notes"`
}

// OOMDocument describes one OOM.
type OOMDocument struct {
	Event       int    `json:"event"`
	TimeUS      int64  `json:"time_us"`
	Requested   int64  `json:"requested"`
	Reserved    int64  `json:"reserved"`
	Allocated   int64  `json:"allocated"`
	LargestFree int64  `json:"largest_free"`
	DeviceFree  int64  `json:"device_free"`
	Cause       Cause  `json:"cause"`
	Reason      string `json:"reason,omitempty"`
	Recorded    bool   `json:"recorded"`
}

// FragmentationByDoc holds the fragmentation at the reserved peak.
type FragmentationByDoc struct {
	AtPeak FragmentationDocument `json:"at_peak"`
}

// FragmentationDocument is a Fragmentation.
type FragmentationDocument struct {
	Event               int     `json:"event"`
	Reserved            int64   `json:"reserved"`
	Allocated           int64   `json:"allocated"`
	ReservedUnallocated int64   `json:"reserved_unallocated"`
	Stranded            int64   `json:"stranded"`
	LargestFree         int64   `json:"largest_free"`
	External            float64 `json:"external"`
}

// DriverDocument is a Driver; the stall is rounded to whole µs.
type DriverDocument struct {
	Mallocs int64 `json:"mallocs"`
	Frees   int64 `json:"frees"`
	Maps    int64 `json:"maps"`
	Unmaps  int64 `json:"unmaps"`
	StallUS int64 `json:"stall_us"`
}

// Document returns the driver's part of a Document.
func (d Driver) Document() DriverDocument {
	return DriverDocument{d.Mallocs, d.Frees, d.Maps, d.Unmaps, int64(d.StallUS + 0.5)}
}

// Document returns the result in the form of the JSON output.
func (r *Result) Document() *Document {
	d := &Document{
		Policy: r.Policy.String(), Conf: r.Policy.Options,
		Capacity: orNull(r.Capacity), Limit: orNull(r.Limit),
		Completed: r.Completed, Events: r.Events, Stats: r.Stats.Flat(),
		OOMs: []OOMDocument{}, Utilization: r.Utilization(),
		Driver: r.Driver.Document(),
		Notes:  append([]string{}, r.Notes...),
	}
	for _, o := range r.OOMs {
		d.OOMs = append(d.OOMs, OOMDocument(o))
	}
	if f := r.AtPeak; f != nil {
		d.Fragmentation.AtPeak = FragmentationDocument(*f)
	}
	return d
}

func orNull(n int64) *int64 {
	if n == 0 {
		return nil
	}
	return &n
}
