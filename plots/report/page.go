package report

import (
	_ "embed" // the page's parts
	"html/template"
)

//go:embed page.html
var pageText string

//go:embed style.css
var style string

//go:embed script.js
var script string

var page = template.Must(template.New("report").Parse(pageText))
