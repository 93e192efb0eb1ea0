package sim

import "allocsim/traces"

// StateSummary describes the segments of a snapshot, in bytes.
type StateSummary struct {
	Count       int   `json:"count"`
	Reserved    int64 `json:"reserved"`
	Blocks      int   `json:"blocks"` // in use
	Allocated   int64 `json:"allocated"`
	Free        int64 `json:"free"`
	LargestFree int64 `json:"largest_free"`
	// Stranded is free memory in segments that something in use keeps.
	Stranded int64 `json:"stranded"`
	// External is 1 − largest free block / all free bytes.
	External float64 `json:"external"`
}

// SummarizeState adds up a state's segments.
func SummarizeState(st *traces.State) StateSummary {
	var s StateSummary
	for _, seg := range st.Segments {
		s.Count++
		s.Reserved += seg.Size
		var here int64
		for _, b := range seg.Blocks {
			if b.State == traces.Inactive {
				here += b.Size
				s.LargestFree = max(s.LargestFree, b.Size)
				continue
			}
			s.Blocks++
			s.Allocated += b.Size
		}
		s.Free += here
		if here < seg.Size {
			s.Stranded += here
		}
	}
	if s.Free > 0 {
		s.External = 1 - float64(s.LargestFree)/float64(s.Free)
	}
	return s
}
