package validate

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
)

type junitSuites struct {
	XMLName  xml.Name     `xml:"testsuites"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Suites   []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name       string          `xml:"name,attr"`
	Tests      int             `xml:"tests,attr"`
	Failures   int             `xml:"failures,attr"`
	Skipped    int             `xml:"skipped,attr"`
	Properties []junitProperty `xml:"properties>property"`
	Cases      []junitCase     `xml:"testcase"`
	Out        string          `xml:"system-out,omitempty"`
}

type junitProperty struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Failure *junitFailure `xml:"failure"`
	Skipped *junitFailure `xml:"skipped"`
}

type junitFailure struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// WriteJUnit writes reports as JUnit XML, which CI systems show: one suite for
// each report, one test case for each of its checks. A check that passes with
// the engine sim is marked skipped, because it confirms nothing real; one that
// fails is a failure whatever the engine.
func WriteJUnit(w io.Writer, reports ...*Report) error {
	var all junitSuites
	for _, r := range reports {
		s := junitSuite{
			Name: "allocsim validate " + r.Source,
			Properties: []junitProperty{
				{"policy", r.Policy}, {"device", r.Device}, {"engine", r.Engine},
				{"tolerance_percent", fmt.Sprint(r.Tolerance)}, {"slack_bytes", fmt.Sprint(r.Slack)},
			},
			Out: strings.Join(r.Notes, "\n"),
		}
		for _, c := range r.Checks() {
			tc := junitCase{Class: "allocsim.validate." + r.Engine, Name: c.Name}
			switch {
			case !c.Pass:
				text := fmt.Sprintf("predicted: %s\nmeasured:  %s\n", c.Predicted, c.Measured)
				if !math.IsNaN(c.Deviation) {
					text += fmt.Sprintf("deviation: %+.3f, tolerance %g\n", c.Deviation, r.Tolerance)
				}
				if c.Name == checkOneByOne {
					for _, m := range r.Mismatches {
						text += fmt.Sprintf("%s %s: predicted %s, measured %s\n", m.What, m.Where, m.Predicted, m.Measured)
					}
				}
				tc.Failure = &junitFailure{Message: c.Why, Text: text}
				s.Failures++
			case !r.Confirmed:
				tc.Skipped = &junitFailure{Message: "modelled device: nothing real was confirmed"}
				s.Skipped++
			}
			s.Cases = append(s.Cases, tc)
		}
		s.Tests = len(s.Cases)
		all.Tests += s.Tests
		all.Failures += s.Failures
		all.Suites = append(all.Suites, s)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(all); err != nil {
		return fmt.Errorf("write JUnit XML: %w", err)
	}
	_, err := io.WriteString(w, "\n")
	return err
}
