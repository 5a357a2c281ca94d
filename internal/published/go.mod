// A module of its own, so that only its tests require what makes zips of modules.
module github.com/joblock/toolkit/internal/published

go 1.26.0

require golang.org/x/mod v0.43.0
