package spec

var LoadZone = loadZone
